"""The tables of the evaluator's file. A change here needs a step in memory.py's migrations."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, MetaData
from sqlmodel import Field, SQLModel


class MemoryModel(SQLModel):
    """What all tables of this file share."""

    metadata = MetaData()


def _moment(*, needed: bool = False, index: bool = False) -> Column[int]:
    return Column(BigInteger, nullable=not needed, index=index)


class AlertRow(MemoryModel, table=True):
    """An alert as it stands. Moments in milliseconds, labels and annotations as JSON objects."""

    __tablename__ = "alert"

    rule: str = Field(primary_key=True)
    labels: str = Field(primary_key=True)
    annotations: str
    value: str  # as text: SQLite has no NaN and no infinity
    state: str
    active_at: int = Field(sa_column=_moment(needed=True))
    fired_at: int | None = Field(default=None, sa_column=_moment())
    resolved_at: int | None = Field(default=None, sa_column=_moment())
    keep_firing_since: int | None = Field(default=None, sa_column=_moment())
    sent: int | None = Field(default=None, sa_column=_moment())


class EventRow(MemoryModel, table=True):
    """A change of state, for the history of alerts."""

    __tablename__ = "event"

    id: int | None = Field(default=None, primary_key=True)
    at: int = Field(sa_column=_moment(needed=True, index=True))
    name: str = Field(index=True)
    labels: str
    before: str  # "" for a new alert
    after: str  # "" for one that was pending and never fired
    value: str
    annotations: str


class FactRow(MemoryModel, table=True):
    """Single numbers, by name."""

    __tablename__ = "fact"

    name: str = Field(primary_key=True)
    value: int = Field(sa_column=_moment(needed=True))


class AcknowledgementRow(MemoryModel, table=True):
    """An alert that somebody took note of (schema 2). Moments in milliseconds, labels as a JSON object."""

    __tablename__ = "acknowledgement"

    labels: str = Field(primary_key=True)
    by: str
    comment: str
    until: int = Field(sa_column=_moment(needed=True))
    made: int = Field(sa_column=_moment(needed=True))
