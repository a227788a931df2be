"""What limits a run has: their place in its record, and what holds where nobody says anything."""

from __future__ import annotations

LIMITS = "limits"
"""In the metadata of a run: the limits that were asked for."""
MAX_DEATHS = 5
"""How often a run may die at one step before it is parked, where nobody says so."""
