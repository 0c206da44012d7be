"""The report: runs and reproduced tables as one self-contained HTML file."""

from fedrbn.report.page import write_report

__all__ = ["write_report"]
