"""What a task of millrace said, out of the exception that Spark made of it."""

from __future__ import annotations

import re

from millrace.core import errors
from millrace.core.errors import MillraceError

_SAID = re.compile(r"millrace\.core\.errors\.(\w+): (.*)")


def task_error(failed: BaseException | None) -> MillraceError | None:
    """The error that a task raised, when it is behind this exception of Spark; None when millrace did not raise one.

    Spark puts the traceback of the task, of the worker and of the driver into one text; this is the line that matters.
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
