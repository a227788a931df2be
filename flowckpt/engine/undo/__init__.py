"""Compensation: undo what completed steps did, newest first."""
