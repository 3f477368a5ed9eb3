"""How the tables in `examples/data/` were made: two public samples, and small tables written by hand.

    python examples/make_data.py COMPLAINTS.parquet BANKING_QUERIES.parquet

The sources and their licences are in `examples/data/README.md`.
"""

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

OUT = Path(__file__).parent / "data"
QUERIES = 400  # of the source's rows, evenly spaced

# Ten of the 77 intents of banking_queries, in words.
TOPICS = [
    ("age_limit", "the age from which one may have an account"),
    ("card_arrival", "a new card that has not arrived yet"),
    ("cash_withdrawal_charge", "a fee for withdrawing cash"),
    ("exchange_rate", "the exchange rate of a currency"),
    ("lost_or_stolen_phone", "a phone that was lost or stolen"),
    ("pin_blocked", "a PIN that is blocked"),
    ("terminate_account", "closing an account"),
    ("top_up_failed", "a top-up that failed"),
    ("transaction_charged_twice", "a payment that was charged twice"),
    ("verify_my_identity", "proving one's identity"),
]

# Product n is meant for customer n; nothing is for customers 11 and 12.
CUSTOMERS = [
    (1, "Ana", "Runs marathons, trains at six every morning and has worn out two pairs of shoes this year."),
    (2, "Bruno", "Bakes sourdough at home every weekend and gives bread away to the neighbours."),
    (3, "Chloe", "New mother of twins who sleeps four hours a night."),
    (4, "Dmitri", "Plays the electric guitar in a band, in a flat with thin walls."),
    (5, "Elif", "Drinks four espressos a day and complains about the office coffee."),
    (6, "Femi", "Camps in the mountains in every season, with a tent that leaks."),
    (7, "Grace", "Has two old cats that refuse the food from the supermarket."),
    (8, "Hiro", "Works from home on a kitchen chair and has back pain."),
    (9, "Jonas", "Cycles to work in the dark and was nearly hit by a car last week."),
    (10, "Liam", "Student who paints watercolours and sells them at the market."),
    (11, "Ines", "Grows tomatoes and herbs on a small balcony."),
    (12, "Kavita", "Retired teacher who reads three crime novels a week."),
]

PRODUCTS = [
    (1, "running shoes", "Light running shoes for long distances on the road"),
    (2, "bread oven", "Cast iron pot for baking bread with a crisp crust"),
    (3, "baby carrier", "Carrier for two babies, with lumbar support"),
    (4, "headphone amplifier", "Amplifier to play the electric guitar on headphones"),
    (5, "espresso machine", "Espresso machine with a built-in grinder"),
    (6, "tent", "Waterproof tent for two people, tested in storms"),
    (7, "cat food", "Wet food for senior cats, without grain"),
    (8, "office chair", "Ergonomic office chair with adjustable lumbar support"),
    (9, "bicycle lights", "Bright front and rear lights for bicycles"),
    (10, "watercolour set", "Set of 24 watercolours with brushes"),
]


def main(complaints: str, queries: str) -> None:
    """Write the five tables. Rows keep the order of their source."""
    table = pq.read_table(complaints, columns=["id", "text", "product", "issue", "company_response"])
    _write("complaints", table)
    table = pq.read_table(queries, columns=["id", "text", "intent"])
    _write("banking_queries", table.take([i * table.num_rows // QUERIES for i in range(QUERIES)]))
    _write("topics", _rows(("intent", "description"), TOPICS))
    _write("customers", _rows(("id", "name", "profile"), CUSTOMERS))
    _write("products", _rows(("id", "name", "description"), PRODUCTS))


def _rows(names: tuple[str, ...], rows: list[tuple]) -> pa.Table:
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def _write(name: str, table: pa.Table) -> None:
    path = OUT / f"{name}.parquet"
    pq.write_table(table.replace_schema_metadata(None), path, compression="zstd")
    print(f"{path.name}: {table.num_rows} rows, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
