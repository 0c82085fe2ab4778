"""The checklist: one pure function per file over the snapshot and the last minute, the same for series, page and `poise doctor`."""
