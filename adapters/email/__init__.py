"""An outbox for e-mail: written in the business transaction, sent by relays that are fenced, honest about what cannot
be known.

``Outbox().put(tx, message, key=...)`` stores the frozen message. A :class:`Relay` claims it under a lease and a
token, speaks ``MAIL`` and ``RCPT``, commits ``dispatching``, and only then sends the content. Under the policy
``hold`` a message is handed to the server at most once for its key; what nobody can know is shown as ``uncertain``
and waits for a person.
"""

from adapters.email._acts import Act, ActRefusedError, Purged, Resolution, UnknownMessageError
from adapters.email._backoff import Backoff
from adapters.email._batch import RelayCounts
from adapters.email._breaker import Breaker, BreakerState
from adapters.email._diagnose import diagnose
from adapters.email._entries import Details, Entry, EventEntry, RecipientEntry, Stats
from adapters.email._http import HttpTransport
from adapters.email._local import CallableTransport, ConsoleTransport, FileTransport, MemoryTransport
from adapters.email._message import Attachment, Email
from adapters.email._outbox import Item, Outbox
from adapters.email._parts import Address, File, Parts
from adapters.email._providers import Key, Meaning, Provider, Reference, brevo, generic, loops, resend
from adapters.email._put import Put
from adapters.email._redirect import RedirectTransport
from adapters.email._relay import Relay, RelayStatus
from adapters.email._schema import create_all, ddl, metadata
from adapters.email._smtp import SmtpTransport
from adapters.email._states import Policy, State
from adapters.email._transport import (
    Answer,
    Delivery,
    Gate,
    GateClosed,
    LookUp,
    Outgoing,
    Session,
    Transport,
    TransportUnavailable,
)

__all__ = [
    "Act",
    "ActRefusedError",
    "Address",
    "Answer",
    "Attachment",
    "Backoff",
    "Breaker",
    "BreakerState",
    "CallableTransport",
    "ConsoleTransport",
    "Delivery",
    "Details",
    "Email",
    "Entry",
    "EventEntry",
    "File",
    "FileTransport",
    "Gate",
    "GateClosed",
    "HttpTransport",
    "Item",
    "Key",
    "LookUp",
    "Meaning",
    "MemoryTransport",
    "Outbox",
    "Outgoing",
    "Parts",
    "Policy",
    "Provider",
    "Purged",
    "Put",
    "RecipientEntry",
    "RedirectTransport",
    "Reference",
    "Relay",
    "RelayCounts",
    "RelayStatus",
    "Resolution",
    "Session",
    "SmtpTransport",
    "State",
    "Stats",
    "Transport",
    "TransportUnavailable",
    "UnknownMessageError",
    "brevo",
    "create_all",
    "ddl",
    "diagnose",
    "generic",
    "loops",
    "metadata",
    "resend",
]
