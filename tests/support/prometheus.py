"""What an endpoint serves to Prometheus."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def scrape(port: int) -> dict[str, float]:
    """Its samples now, by name and the values of their labels: ``name[value][value]``."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    return {
        f"{sample.name}{''.join(f'[{value}]' for _, value in sorted(sample.labels.items()))}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
