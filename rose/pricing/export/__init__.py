"""Exports: FOCUS 1.2 rows, a workbook, an HTML report, each written whole or not at all."""
