"""The servers of the quick start and of these tests: they come up, and nothing of them stays."""

import smtplib

import psycopg

from scheduler.console.embedded import SmtpSink, Valkey


def test_every_test_has_a_database_of_its_own(pg_dsn: str) -> None:
    with psycopg.connect(pg_dsn) as connection:
        connection.execute("create table here (n int)")


def test_every_test_has_an_empty_valkey(valkey: Valkey, valkey_url: str) -> None:
    assert valkey.command("DBSIZE") == "0"
    valkey.command("SET", "here", "1")


def test_the_sink_keeps_what_it_accepts(smtp_sink: SmtpSink) -> None:
    with smtplib.SMTP(smtp_sink.host, smtp_sink.port) as client:
        client.sendmail("a@example.org", ["b@example.org", "c@example.org"], "Subject: hello\r\n\r\n.dot\r\n")
    (message,) = smtp_sink.wait_for(1)
    assert message.rcpt_tos == ("b@example.org", "c@example.org")
    assert message.data == b"Subject: hello\r\n\r\n.dot\r\n"
