"""How many rows a plan has and how long its texts are, as far as that is known without running anything. Driver-side.

First what Spark knows: counts of plans and the column statistics that ANALYZE TABLE writes. Where it knows nothing, the
footers of some Parquet files tell: Spark does not read them before it plans.
"""

import json
import logging
from collections.abc import Iterable
from functools import cached_property

from quail_spark.optimizer.anchor import SideSize

from .scala import Catalyst, JavaObject, conjuncts, items, kind

DELTA_INDEX = "PreparedDeltaFileIndex"
FILE_INDEXES = ("InMemoryFileIndex", DELTA_INDEX)  # which have listed their files already
FORMATS = ("ParquetFileFormat", "DeltaParquetFileFormat")
MOST_SECONDS = 5

_log = logging.getLogger(__name__)


class PlanStatistics:
    """Statistics for the planning of one query. `files`: of how many files of a table footers are read, at most."""

    def __init__(self, catalyst: Catalyst, builder: JavaObject, files: int):
        self._catalyst, self._builder, self._files = catalyst, builder, files
        self._footers: dict[int, Footers | None] = {}

    @cached_property
    def _hadoop(self) -> JavaObject:
        return self._catalyst.spark._jsparkSession.sessionState().newHadoopConf()

    def rows(self, plan: JavaObject) -> int | None:
        """Rows of a plan, where nothing is guessed about a filter."""
        counted = plan.stats().rowCount()
        if not counted.isEmpty():
            return int(str(counted.get()))
        if kind(plan) == "Project" or _guesses_nothing(plan):
            return self.rows(plan.child())
        footers = self._of(plan)
        return footers.rows if footers else None

    def rows_read(self, plan: JavaObject) -> int | None:
        """Rows of a plan; below a filter that Spark did not estimate, those that it reads."""
        rows = self.rows(plan)
        return self.rows_read(plan.child()) if rows is None and kind(plan) in ("Project", "Filter") else rows

    def size(self, plan: JavaObject, texts: list[JavaObject]) -> SideSize:
        """What is known of an input and of the texts that a prompt reads there."""
        read = {a.exprId().id(): a for text in texts for a in items(text.references().toSeq())}
        lengths = [self._length(plan, attribute) for attribute in read.values()]
        return SideSize(self.rows(plan), _sum(lengths), int(str(plan.stats().sizeInBytes())))

    def text_bytes(self, plan: JavaObject, expression: JavaObject) -> float | None:
        """UTF-8 bytes a row, on average, of the columns that an expression reads."""
        return _sum(self._length(plan, attribute) for attribute in items(expression.references().toSeq()))

    def distinct(self, plan: JavaObject, expression: JavaObject) -> float | None:
        """About how many values a column has; None for what computes and where it is not known or about all are."""
        while kind(expression) in ("Cast", "Alias"):
            expression = expression.child()
        if kind(expression) != "AttributeReference":
            return None
        return self._fact(plan, expression, "distinctCount", Footers.distinct, self.distinct)

    def _length(self, plan: JavaObject, attribute: JavaObject) -> float | None:
        """Of one column. What passes its values on does not change their length on average."""
        return self._fact(plan, attribute, "avgLen", Footers.text_bytes, self.text_bytes)

    def _fact(self, plan: JavaObject, attribute: JavaObject, statistic: str, in_footers, below) -> float | None:
        """Of one column: Spark's statistic of this name, else what the table's footers tell, else what is known `below`,
        in the input that the column comes from."""
        known = plan.stats().attributeStats().get(attribute)
        if not known.isEmpty() and not (value := getattr(known.get(), statistic)()).isEmpty():
            return float(str(value.get()))
        if (footers := self._of(plan)) is not None:
            return in_footers(footers, attribute.name())
        source, made = _made(plan, attribute)
        return None if source is None else below(source, made)

    def _of(self, plan: JavaObject) -> "Footers | None":
        """The footers of a table's files; None for another plan and where they can't be read."""
        if not self._files or not _is_files(plan):
            return None
        index, format_ = plan.relation().location(), plan.relation().fileFormat()
        if kind(index) not in FILE_INDEXES or kind(format_) not in FORMATS:
            return None
        key = self._catalyst.jvm.System.identityHashCode(index)
        if key not in self._footers:
            self._footers[key] = self._read(index)
        return self._footers[key]

    def _read(self, index: JavaObject) -> "Footers | None":
        try:
            return Footers(
                json.loads(self._builder.footers(index, self._hadoop, self._files, MOST_SECONDS)), index.sizeInBytes()
            )
        except Exception:  # a file that has gone, a store that refuses: the query itself will say so, or do without it
            _log.info("Parquet footers can't be read; sizes are unknown to the planner", exc_info=True)
            return None


class Footers:
    """What some files of a table say of all: `facts` as `ParquetFooters.sample` gives them, `total` bytes of all files."""

    def __init__(self, facts: dict, total: int):
        self._facts, self._total = facts, total

    @property
    def rows(self) -> int | None:
        """Rows of all files, in proportion to their bytes where not all were read."""
        read, files = self._facts["read"], self._facts["files"]
        if read == files:
            return self._facts["rows"]
        return round(self._facts["rows"] * self._total / self._facts["bytes"]) if read else None

    def text_bytes(self, column: str) -> float | None:
        """UTF-8 bytes of a column's values, on average over all rows; None where that is not known."""
        bytes_ = self._fact("texts", column)
        return None if bytes_ is None or not self._facts["rows"] else bytes_ / self._facts["rows"]

    def distinct(self, column: str) -> float | None:
        """Values of a column that repeats them within each row group; None where that is not known."""
        return self._fact("distinct", column)

    def _fact(self, name: str, column: str) -> float | None:
        found = [value for key, value in self._facts[name].items() if key.lower() == column.lower()]
        return float(found[0]) if len(found) == 1 and found[0] >= 0 else None


def _made(plan: JavaObject, attribute: JavaObject) -> tuple[JavaObject | None, JavaObject]:
    """The input that an attribute comes from, and what it is there; (None, …) where that is not to be seen."""
    source = next((child for child in items(plan.children()) if child.outputSet().contains(attribute)), None)
    if source is None and kind(plan) == "Project":
        made = next(e for e in items(plan.projectList()) if e.exprId().equals(attribute.exprId()))
        return plan.child(), made
    return source, attribute


def _is_files(plan: JavaObject) -> bool:
    """Whether a plan is a table of files."""
    return kind(plan) == "LogicalRelation" and kind(plan.relation()) == "HadoopFsRelation"


def _guesses_nothing(plan: JavaObject) -> bool:
    """Whether a Filter leaves out NULLs, of which there are few, or partitions, whose files Spark has left out already."""
    if kind(plan) != "Filter":
        return False
    parts = _partition_columns(plan.child())
    for condition in conjuncts(plan.condition()):
        read = {a.name() for a in items(condition.references().toSeq())}
        if kind(condition) != "IsNotNull" and not (read and read <= parts):
            return False
    return True


def _partition_columns(plan: JavaObject) -> set[str]:
    """Columns whose conditions have chosen the files of this table already: Spark does so for tables of its catalog."""
    if not _is_files(plan):
        return set()
    relation = plan.relation()
    chosen = plan.catalogTable().isDefined() or kind(relation.location()) == DELTA_INDEX
    return set(relation.partitionSchema().fieldNames()) if chosen else set()


def _sum(lengths: Iterable[float | None]) -> float | None:
    known = list(lengths)
    return None if None in known else float(sum(known))
