"""Planted bugs: systems that are wrong on purpose, one small fault each, to prove that the suites would notice.

Each says where such a fault was seen in a real system.
"""

from fencing.testing._planted._bug import PlantedBug
from fencing.testing._planted._guards import GUARD_BUGS
from fencing.testing._planted._leases import LEASE_BUGS

__all__ = ["GUARD_BUGS", "LEASE_BUGS", "PlantedBug"]
