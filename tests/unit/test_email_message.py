"""What a message becomes when it is put: checked, frozen, comparable."""

import email
import email.policy
from datetime import UTC, datetime
from email.message import EmailMessage
from email.mime.text import MIMEText
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.email import Attachment, CallableTransport, Email, MemoryTransport, Outgoing, RedirectTransport, Transport
from adapters.email._content import differing
from adapters.email._freeze import Frozen, Limits, freeze

LIMITS = Limits(max_bytes=100_000, max_recipients=10)


def frozen(message: Any, key: str = "invoice/42", **options: Any) -> Frozen:
    return freeze(message, key, options.pop("limits", LIMITS), default_from="Shop <shop@example.org>", **options)


def simple(**changes: Any) -> Email:
    return Email(**{"to": "ann@example.org", "subject": "Invoice 42", "text": "Please pay.\n", **changes})


def parsed(result: Frozen) -> EmailMessage:
    message = email.message_from_bytes(result.message, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    return message


def stdlib(text: str = "Please pay.\n") -> EmailMessage:
    message = EmailMessage()
    message["From"] = "shop@example.org"
    message["To"] = "ann@example.org"
    message["Subject"] = "Invoice 42"
    message.set_content(text)
    message.add_alternative("<p>Please pay.</p>", subtype="html")
    message.add_attachment(b"%PDF\r\n\x00", maintype="application", subtype="pdf", filename="42.pdf")
    return message


# -- final bytes


def test_the_message_has_all_that_it_needs_and_only_crlf() -> None:
    result = frozen(simple())
    message = parsed(result)
    assert message["From"] == "Shop <shop@example.org>"
    assert message["Message-ID"] == result.message_id
    assert abs(message["Date"].datetime - datetime.now(UTC)).total_seconds() < 60
    assert b"\n" not in result.message.replace(b"\r\n", b"")
    assert b"\r" not in result.message.replace(b"\r\n", b"")
    assert result.message.endswith(b"\r\n")


def test_bcc_is_in_the_envelope_and_nowhere_in_the_bytes() -> None:
    for message in (simple(bcc=["spy@example.org"]), _with_bcc(stdlib())):
        result = frozen(message)
        assert "spy@example.org" in result.recipients
        assert b"spy" not in result.message
        assert b"bcc" not in result.message.lower()


def _with_bcc(message: EmailMessage) -> EmailMessage:
    message["Bcc"] = "spy@example.org"
    return message


def test_the_message_passed_in_stays_as_it_is() -> None:
    message = _with_bcc(stdlib())
    before = message.items()
    frozen(message)
    assert message.items() == before


def test_message_id_and_boundaries_come_from_key_and_content() -> None:
    one, again = frozen(stdlib()), frozen(stdlib())
    assert one.message_id == again.message_id
    assert parsed(one).get_boundary() == parsed(again).get_boundary()
    assert frozen(stdlib(), "invoice/43").message_id != one.message_id
    # The boundary cannot be guessed by whoever writes a part of the content under a known key.
    assert parsed(frozen(stdlib("Other.\n"))).get_boundary() != parsed(one).get_boundary()


def test_a_message_id_and_date_of_the_callers_own_are_kept() -> None:
    message = stdlib()
    message["Message-ID"] = "<mine@example.org>"
    message["Date"] = "Fri, 02 Jan 2026 03:04:05 +0000"
    result = frozen(message)
    assert result.message_id == "<mine@example.org>"
    assert parsed(result)["Date"] == "Fri, 02 Jan 2026 03:04:05 +0000"


def test_domains_become_a_labels_in_envelope_and_headers() -> None:
    result = frozen(simple(to="Jörg Müller <joerg@bücher.example>"))
    assert result.recipients == ("joerg@xn--bcher-kva.example",)
    assert parsed(result)["To"].addresses[0].display_name == "Jörg Müller"
    assert parsed(result)["To"].addresses[0].addr_spec == "joerg@xn--bcher-kva.example"
    assert result.message.isascii()


def test_a_local_part_that_is_not_ascii_is_kept_as_it_is() -> None:
    result = frozen(simple(to="jörg@example.org"))
    assert result.recipients == ("jörg@example.org",)
    assert "To: jörg@example.org".encode() in result.message
    assert b"=?" not in result.message.partition(b"Subject")[0]


def test_a_body_is_always_seven_bit() -> None:
    message = stdlib("Grüße " + "ü" * 2000)
    assert frozen(message).message.isascii()
    assert frozen(simple(text="Grüße", html="<p>Grüße</p>")).message.isascii()
    assert parsed(frozen(simple(text="Grüße"))).get_content().rstrip() == "Grüße"


LINK = f"<https://example.org/unsubscribe?token={'0123456789abcdef' * 6}>"
IDS = " ".join(f"<{number}{'A' * 60}@mail.outlook.example>" for number in range(3))


def test_a_long_word_of_a_header_stays_whole() -> None:
    # The stdlib makes encoded words of it, which no reader takes apart in these headers (RFC 2047 §5).
    message = stdlib()
    message["List-Unsubscribe"] = f"<mailto:leave@example.org>, {LINK}"
    given = email.message_from_bytes(frozen(message).message, policy=email.policy.default)
    for result in (
        frozen(simple(headers={"List-Unsubscribe": LINK, "In-Reply-To": IDS[:85], "References": IDS})),
        frozen(given),
    ):
        assert b"=?" not in result.message
        assert LINK.encode() in result.message
        assert max(map(len, result.message.splitlines())) < 998
    assert parsed(frozen(simple(headers={"References": IDS})))["References"] == IDS
    with_umlaut = frozen(simple(subject="Grüße " + "x" * 200)).message
    assert b"=?" in with_umlaut
    assert b"=?" in frozen(simple(subject="x" * 2000)).message  # nothing else keeps the lines short enough


@pytest.mark.parametrize("address", ["ann@example.org", "jörg@example.org"])
def test_what_takes_a_message_apart_again_leaves_its_headers_as_they_are(address: str) -> None:
    content = frozen(simple(from_=address, headers={"List-Unsubscribe": LINK, "References": IDS})).message
    seen: list[bytes] = []
    staging = MemoryTransport()
    transports: tuple[Transport, ...] = (
        CallableTransport(lambda message, mail_from, recipients: seen.append(message.as_bytes())),
        RedirectTransport(staging, "dev@example.org"),
    )
    for transport in transports:
        transport.session().deliver(Outgoing(address, ("ann@example.org",), content), lambda refused: None)
    assert seen == [content]
    head = staging.sent[0].message.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert [line for line in content.partition(b"\r\n\r\n")[0].split(b"\r\n") if line not in head] == [
        b"To: ann@example.org"
    ]


def test_recipients_are_distinct_and_in_order() -> None:
    result = frozen(simple(to=["a@example.org", "b@example.org"], cc="A@EXAMPLE.org", bcc=["b@example.ORG"]))
    assert result.recipients == ("a@example.org", "b@example.org", "A@example.org")


def test_the_envelope_sender_is_the_sender_unless_told_otherwise() -> None:
    message = stdlib()
    message["Sender"] = "robot@example.org"
    assert frozen(message).mail_from == "robot@example.org"
    assert frozen(stdlib()).mail_from == "shop@example.org"
    assert frozen(stdlib(), envelope_from="bounces@example.org").mail_from == "bounces@example.org"


def test_attachments_and_alternatives_arrive_as_they_were() -> None:
    attachment = Attachment("Rechnung ä.pdf", b"%PDF\x00\r\n\xff", "application/pdf")
    message = parsed(frozen(simple(html="<p>Pay</p>", attachments=[attachment], headers={"X-Kind": "invoice"})))
    [found] = message.iter_attachments()
    assert found.get_filename() == "Rechnung ä.pdf"
    assert found.get_content() == b"%PDF\x00\r\n\xff"
    assert message.get_body(("html",)).get_content() == "<p>Pay</p>\r\n"  # type: ignore[union-attr]
    assert message["X-Kind"] == "invoice"


@given(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    st.text(st.characters(exclude_categories=["Cs", "Cc"])),
)
def test_no_text_breaks_the_frame_of_the_message(text: str, subject: str) -> None:
    result = frozen(simple(text=text, subject=subject))
    assert b"\n" not in result.message.replace(b"\r\n", b"")
    head, _, _ = result.message.partition(b"\r\n\r\n")
    names = [line.partition(b":")[0] for line in head.split(b"\r\n") if not line.startswith((b" ", b"\t"))]
    assert sorted(names) == sorted(
        b"Subject Content-Type Content-Transfer-Encoding MIME-Version From To Message-ID Date".split()
    )


# -- the same content


def test_the_same_content_is_recognised_whatever_is_generated_anew() -> None:
    again = stdlib()
    again["Message-ID"] = "<random-1@example.org>"
    again["Date"] = "Fri, 02 Jan 2026 03:04:05 +0000"
    again.as_bytes()  # the stdlib gives the message a random boundary here
    assert differing(frozen(stdlib()).content, frozen(again).content) == ()


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"subject": "Invoice 43"}, ("subject",)),
        ({"text": "Pay now.\n"}, ("text",)),
        ({"html": "<p>Pay</p>"}, ("html", "structure")),
        ({"to": "bob@example.org"}, ("envelope", "to")),
        ({"cc": "bob@example.org"}, ("cc", "envelope")),
        ({"bcc": "bob@example.org"}, ("bcc", "envelope")),
        ({"reply_to": "bob@example.org"}, ("reply-to",)),
        ({"from_": "Other <shop@example.org>"}, ("from",)),
        ({"headers": {"X-Kind": "b"}}, ("headers",)),
        ({"attachments": [Attachment("a", b"2")]}, ("attachments", "structure")),
    ],
)
def test_other_content_is_named(change: dict[str, Any], differs: tuple[str, ...]) -> None:
    assert differing(frozen(simple()).content, frozen(simple(**change)).content) == differs


def test_one_changed_byte_of_an_attachment_is_other_content() -> None:
    one, other = (frozen(simple(attachments=[Attachment("a", data)])) for data in (b"1", b"2"))
    assert differing(one.content, other.content) == ("attachments",)


def test_a_message_inside_a_message_is_content() -> None:
    def forwarded(text: str, subject: str = "Original") -> EmailMessage:
        inner = EmailMessage()
        inner["Subject"] = subject
        inner["Message-ID"] = f"<{id(inner)}@example.org>"
        inner.set_content(text)
        outer = stdlib()
        outer.add_attachment(inner)
        return outer

    one = frozen(forwarded("a")).content
    assert differing(one, frozen(forwarded("a")).content) == ()
    assert differing(one, frozen(forwarded("a", "Faked")).content) == ("attachments",)
    assert differing(one, frozen(forwarded("b")).content) == ("text",)


# -- refusals, each naming its field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (simple(subject="Hello\nBcc: x@example.org"), "subject"),
        (simple(subject="Hello\rX"), "subject"),
        (simple(subject="Hello\x00"), "subject"),
        (simple(to="ann@example.org\nBcc: x@example.org"), "to"),
        (simple(to="Ann\r\nX: y <ann@example.org>"), "to"),
        (simple(to=["ann@example.org", "not an address"]), r"to\[1\]"),
        (simple(to="a@example.org, b@example.org"), "to"),
        (simple(to="a@example.org, Bob <b@example.org>"), "to"),
        (simple(cc=["@example.org"]), r"cc\[0\]"),
        (simple(bcc="x"), "bcc"),
        (simple(reply_to="x"), "reply_to"),
        (simple(from_="x"), "from_"),
        (simple(to=()), "to"),
        (simple(to=[f"r{number}@example.org" for number in range(11)]), "recipients"),
        (simple(headers={"X-A": "b\r\nBcc: x@example.org"}), "X-A"),
        (simple(headers={"X A": "b"}), "X A"),
        (simple(headers={"Subject": "b"}), "Subject"),
        (simple(headers={"Bcc": "b@example.org"}), "Bcc"),
        (simple(subject="Hello\u2028X"), "subject"),
        (simple(headers={"X-A": "b\x85c"}), "X-A"),
        (simple(to="Ann\u2029B <ann@example.org>"), "to"),
        (simple(text="\ud800"), "text"),
        (simple(attachments=[Attachment("a\nb", b"")]), r"attachments\[0\].filename"),
        (simple(attachments=[Attachment("a", b"", "nonsense")]), r"attachments\[0\].type"),
        (simple(attachments=[Attachment("a", b"", "text/ht ml")]), r"attachments\[0\].type"),
        (simple(attachments=[Attachment("a", b"", 'application/x"y')]), r"attachments\[0\].type"),
        (simple(headers={"Resent-Bcc": "b@example.org"}), "Resent-Bcc"),
        (simple(headers={"resent-to": "b@example.org"}), "Resent-To"),
        (simple(attachments=[Attachment("a", b"x" * 100_000)]), "bytes"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(message: Email, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        frozen(message)


@pytest.mark.parametrize(
    "kind",
    [
        "application/pdf",
        "x-world/x-vrml",
        "text/calendar; method=REQUEST",
        "a/b+c.d",
        'text/csv; header="present"; name="a b.csv"',
    ],
)
def test_a_media_type_goes_out_as_it_is(kind: str) -> None:
    content = frozen(simple(attachments=[Attachment("a", b"x", kind)])).message
    assert f"Content-Type: {kind}\r\n".replace('"', "").encode() in content.replace(b'"', b"")


def test_wrong_types_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="legacy messages"):
        frozen(MIMEText("x"))
    with pytest.raises(TypeError, match="not dict"):
        frozen({"to": "ann@example.org"})
    with pytest.raises(TypeError, match="subject"):
        frozen(simple(subject=3))
    with pytest.raises(TypeError, match=r"attachments\[0\].content"):
        frozen(simple(attachments=[Attachment("a", "text")]))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"attachments\[0\] is an Attachment, not tuple"):
        frozen(simple(attachments=[("a", b"x", "text/plain")]))
    for field in ("to", "cc", "bcc", "reply_to", "attachments", "headers"):
        with pytest.raises(TypeError, match=f"{field} .*, not NoneType"):
            frozen(simple(**{field: None}))
    with pytest.raises(TypeError, match=r"headers\[7\] .* not int"):
        frozen(simple(headers={7: "x"}))


def test_a_header_that_hides_a_line_break_in_an_encoded_word_is_refused() -> None:
    raw = b"From: a@example.org\r\nTo: b@example.org\r\nSubject: =?utf-8?q?a=0D=0ABcc=3A_x=40example.org?=\r\n\r\nx\r\n"
    with pytest.raises(ValueError, match="Subject"):
        frozen(email.message_from_bytes(raw, policy=email.policy.default))
    raw = b"From: =?utf-8?q?a=0AX=3A_y?= <a@example.org>\r\nTo: b@example.org\r\n\r\nx\r\n"
    with pytest.raises(ValueError, match="From"):
        frozen(email.message_from_bytes(raw, policy=email.policy.default))


def test_a_line_that_is_too_long_and_a_nul_are_refused() -> None:
    message = email.message_from_bytes(
        b"From: a@example.org\r\nTo: b@example.org\r\n\r\n" + b"x" * 999 + b"\r\n", policy=email.policy.default
    )
    with pytest.raises(ValueError, match="999 bytes"):
        frozen(message)
    message = email.message_from_bytes(
        b"From: a@example.org\r\nTo: b@example.org\r\n\r\nx\x00\r\n", policy=email.policy.default
    )
    with pytest.raises(ValueError, match="NUL"):
        frozen(message)


@pytest.mark.parametrize(
    ("header", "value"),
    [("Date", "tomorrow"), ("Message-ID", "42"), ("Message-ID", "<a b@example.org>"), ("Message-ID", "<a@b> <c@d>")],
)
def test_a_date_or_message_id_that_is_none_is_refused(header: str, value: str) -> None:
    message = stdlib()
    message[header] = value
    with pytest.raises(ValueError, match=f"{header} is not well formed"):
        frozen(message)


@pytest.mark.parametrize("charset", ["us-ascii", "nonsense"])
def test_a_text_that_is_not_in_its_charset_is_refused(charset: str) -> None:
    forwarded = b"Subject: x\r\nContent-Type: text/plain; charset=%b\r\n\r\n\xe4\r\n" % charset.encode()
    message = stdlib()
    message.add_attachment(email.message_from_bytes(forwarded, policy=email.policy.default))
    with pytest.raises(ValueError, match="charset"):
        frozen(message)


def test_several_authors_need_a_sender() -> None:
    message = stdlib()
    message.replace_header("From", "a@example.org, b@example.org")
    with pytest.raises(ValueError, match="Sender"):
        frozen(message)
