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
from adapters.email._diagnose import diagnose
from adapters.email._entries import Details, Entry, EventEntry, RecipientEntry, Stats
from adapters.email._message import Attachment, Email
from adapters.email._outbox import Item, Outbox
from adapters.email._put import Put
from adapters.email._relay import Relay
from adapters.email._schema import create_all, ddl, metadata
from adapters.email._smtp import SmtpTransport
from adapters.email._states import Policy, State
from adapters.email._transport import (
    Answer,
    Delivery,
    Gate,
    GateClosed,
    Outgoing,
    Session,
    Transport,
    TransportUnavailable,
)

__all__ = [
    "Act",
    "ActRefusedError",
    "Answer",
    "Attachment",
    "Backoff",
    "Delivery",
    "Details",
    "Email",
    "Entry",
    "EventEntry",
    "Gate",
    "GateClosed",
    "Item",
    "Outbox",
    "Outgoing",
    "Policy",
    "Purged",
    "Put",
    "RecipientEntry",
    "Relay",
    "RelayCounts",
    "Resolution",
    "Session",
    "SmtpTransport",
    "State",
    "Stats",
    "Transport",
    "TransportUnavailable",
    "UnknownMessageError",
    "create_all",
    "ddl",
    "diagnose",
    "metadata",
]
