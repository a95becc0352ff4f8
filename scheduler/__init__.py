"""A PostgreSQL ``FOR UPDATE SKIP LOCKED`` scheduler whose every claim carries a fencing token."""

from scheduler._acts import Outside
from scheduler._app import Scheduler
from scheduler._backfill import Backfilled
from scheduler._held import Counts
from scheduler._hooks import (
    ClaimEvent,
    EnqueueEvent,
    Event,
    JobEvent,
    LagEvent,
    ListenEvent,
    LoseEvent,
    RescueEvent,
    SettleEvent,
    StartEvent,
    StuckEvent,
)
from scheduler._job import Enqueued, Job
from scheduler._measures import Measures, Percentiles, QueueMeasures, StuckJob, TaskMeasures, WorkerMeasures
from scheduler._occurrence import Occurrence
from scheduler._pruner import Pruned
from scheduler._record import JobRecord
from scheduler._replay import Replayed
from scheduler._retention import Retention
from scheduler._retry import Bury, Retry, RetryIn
from scheduler._schedule import Schedule
from scheduler._schedule_look import ScheduleStory, StoredSchedule

__all__ = [
    "Backfilled",
    "Bury",
    "ClaimEvent",
    "Counts",
    "EnqueueEvent",
    "Enqueued",
    "Event",
    "Job",
    "JobEvent",
    "JobRecord",
    "LagEvent",
    "ListenEvent",
    "LoseEvent",
    "Measures",
    "Occurrence",
    "Outside",
    "Percentiles",
    "Pruned",
    "QueueMeasures",
    "Replayed",
    "RescueEvent",
    "Retention",
    "Retry",
    "RetryIn",
    "Schedule",
    "ScheduleStory",
    "Scheduler",
    "SettleEvent",
    "StartEvent",
    "StoredSchedule",
    "StuckEvent",
    "StuckJob",
    "TaskMeasures",
    "WorkerMeasures",
]
