"""How headers are written: lines are folded between words, and no word is changed that can go as it is."""

from __future__ import annotations

import email.policy
import re

MAX_LINE_BYTES = 998
"""The longest line of a message without its CRLF (RFC 5322 §2.1.1)."""

_FOLD_AT = 78  # the line length that RFC 5322 §2.1.1 asks for

AS_IT_IS = email.policy.SMTP.clone(cte_type="8bit", refold_source="none")
"""For a frozen message that is taken apart again: what is not touched is written as it stood."""


class WholeWords(email.policy.EmailPolicy):
    """The policy of the final bytes.

    The stdlib makes encoded words of an ASCII word that is longer than a line. In ``List-Unsubscribe``,
    ``In-Reply-To`` and their like no reader takes those apart (RFC 2047 §5), so a long word stays whole here, on a
    line of its own that may have up to 998 bytes.
    """

    def fold_binary(self, name: str, value: str) -> bytes:
        """Write one header."""
        folded = super().fold_binary(name, value)
        text = "".join(str(value).splitlines())
        if b"=?" not in folded or "=?" in text or not text.isascii():
            return folded
        lines = [f"{name}:"]
        for word in re.findall(r"\s*\S+", f" {text.strip()}"):
            if len(lines[-1]) + len(word) > _FOLD_AT and lines[-1] != f"{name}:":
                lines.append(word)
            else:
                lines[-1] += word
        if max(map(len, lines)) > MAX_LINE_BYTES:
            return folded
        return "".join(f"{line}{self.linesep}" for line in lines).encode("ascii")
