"""Exports for other tools: FOCUS 1.2 rows, a workbook, an HTML report. Each is written whole or not at all."""
