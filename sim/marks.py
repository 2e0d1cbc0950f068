"""Rare things that runs should come by: what no run ever meets is not tested by any."""

from __future__ import annotations

from enum import StrEnum


class Mark(StrEnum):
    """Something that happened."""

    GAVE_WAY = "a session gave way to another"
    BUSY = "a session was refused as busy"
    SAME_STORE = "two nodes of one store met"
    EXPIRED = "a transfer did not come in time"
    HOT = "a view came from the index alone"
    LAYERED = "a view came from the index and from summaries"
    COLD = "a view came from summaries alone"
    INDEX_LOST = "an index was made anew"
    INDEX_FAILED = "an index could not be made"
    COMMITS_LOST = "a database had lost commits"
    COMMIT_CRASH = "a node crashed between a commit and its acknowledgement"
    TORN = "a call broke at a frame"
    UNREPORTED = "a callee never learned that a call broke"
    HELD_UP = "a frame waited for its reader"
    STALLED = "a call outlived a partition"
    SCANNED = "a resume stored a page"
    LOST_PLACE = "a resume lost its place"
    TRUNCATED = "a session found more than it may report"
    MANY_ROUNDS = "a session took more than four rounds"
    REFUSED_HERE = "policy refused a message"
    REFUSED_THERE = "a peer's policy refused a message"
    DUPLICATE = "a message came that was held already"
    ANOTHER_WAY = "a message came another way"
    PRUNED = "a message was dropped before it could be sent"
    INTERRUPTED = "a transfer ended before its end"
    DROPPED = "retention dropped something"
    LOOKED_UP = "an SDS message was found at a peer"
    NOT_FOUND = "a peer did not hold an SDS message"
    LOOKUP_REFUSED = "policy refused what a peer was asked for"
    LOOKUP_FAILED = "a look-up failed"
    LIED = "a peer that was asked for SDS messages lied"
    ASKED = "an operator was answered"
    WITHDRAWN = "an operator did not wait for the answer"
