"""The error of a millrace task, found inside the exception that Spark raises."""

from __future__ import annotations

import re

from millrace.core import errors
from millrace.core.errors import MillraceError

_SAID = re.compile(r"millrace\.core\.errors\.(\w+): (.*)")


def task_error(failed: BaseException | None) -> MillraceError | None:
    """The millrace error behind an exception of Spark; None if millrace did not raise the error.

    Spark puts the tracebacks of task, worker and driver into one text. This function finds the line that matters.
    """
    seen: set[int] = set()
    while failed is not None and id(failed) not in seen:
        if isinstance(failed, MillraceError):
            return failed
        said = _SAID.findall(str(failed))
        if said:
            kind, text = said[-1]
            of = getattr(errors, kind, MillraceError)
            if of is errors.BudgetError:
                needed = re.search(r"memory=(\d+)", text)
                return errors.BudgetError(text, int(needed[1]) if needed else 0)
            return of(text)
        seen.add(id(failed))
        failed = failed.__cause__ or failed.__context__
    return None
