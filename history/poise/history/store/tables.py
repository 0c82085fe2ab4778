"""The tables of the store's file. SQLModel declares them; the hot path uses the same tables through SQLAlchemy's core.

A change here needs a step in database.py's migrations that brings old files up to it.
"""

from __future__ import annotations

from sqlalchemy import BLOB, BigInteger, Column, Index, MetaData
from sqlmodel import Field, SQLModel


class StoreModel(SQLModel):
    """What all tables of this file share."""

    metadata = MetaData()


class SeriesRow(StoreModel, table=True):
    """A series: its number in ticks and chunks, and its labels as a JSON object with sorted names."""

    __tablename__ = "series"

    id: int | None = Field(default=None, primary_key=True)
    labels: str = Field(unique=True)


class ChunkRow(StoreModel, table=True):
    """Samples of one series from `start` to `end` (milliseconds). `shelved`: their times lie ahead of a clock that was set back."""

    __tablename__ = "chunk"
    # With row numbers, so that chunks lie in the order in which hours end: pages fill up one after the other, and old ones become free as a whole.
    # Without them each chunk over a quarter of a page would take a page of its own, and the file twice the room.
    __table_args__ = (Index("chunk_by_end", "shelved", "end", "start"),)

    series: int = Field(primary_key=True)
    start: int = Field(sa_column=Column(BigInteger, primary_key=True))
    end: int = Field(sa_column=Column(BigInteger, nullable=False))
    shelved: bool = Field(default=False, primary_key=True)
    data: bytes = Field(sa_column=Column(BLOB, nullable=False))


class TickRow(StoreModel, table=True):
    """Everything that one scrape brought, until it is in chunks."""

    __tablename__ = "tick"

    id: int | None = Field(default=None, primary_key=True)
    at: int = Field(sa_column=Column(BigInteger, nullable=False, index=True))
    data: bytes = Field(sa_column=Column(BLOB, nullable=False))
