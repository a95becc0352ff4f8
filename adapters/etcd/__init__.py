"""The etcd adapter: leases and tokens from an etcd cluster, for the same guards.

It is an issuer, as the scheduler is one: :class:`EtcdLeases` is a :class:`~fencing.LeaseSource`. It speaks to the JSON
gateway that every etcd from 3.4 has on its client port.
"""

from adapters.etcd._gateway import EtcdError
from adapters.etcd._leases import EtcdLeases

__all__ = ["EtcdError", "EtcdLeases"]
