"""Exports: FOCUS 1.2 rows, a workbook and an HTML report. Each file is written completely or not at all."""
