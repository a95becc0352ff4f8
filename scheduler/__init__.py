"""A PostgreSQL ``FOR UPDATE SKIP LOCKED`` scheduler whose every claim carries a fencing token."""

from scheduler._acts import Outside
from scheduler._app import Scheduler
from scheduler._held import Counts
from scheduler._job import Enqueued, Job
from scheduler._occurrence import Occurrence
from scheduler._retry import Bury, Retry, RetryIn
from scheduler._schedule import Schedule

__all__ = ["Bury", "Counts", "Enqueued", "Job", "Occurrence", "Outside", "Retry", "RetryIn", "Schedule", "Scheduler"]
