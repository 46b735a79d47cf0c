"""Floor 6: results for people. Needs the extra `report` (matplotlib)."""
