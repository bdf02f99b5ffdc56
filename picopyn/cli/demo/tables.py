"""The tables the demo works on, and the texts it works with. Pure.

Two tables: one whose key is a number, one whose key is made of two columns. The composite one names its key in another
order in its UPDATE than elsewhere, after the new value: a driver that guesses by position goes wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Table:
    """One table with the four texts of its rows.

    Attributes:
        name: Its name.
        create: DDL.
        insert: Takes the key's values, then the state.
        select: Takes the key's values; gives the state.
        update: Takes what `update_arguments` makes.
        delete: Takes the key's values.
        everything: Gives the key's values and the state of every row.
        key: The key's values of row number n.
        update_arguments: Arguments of `update`, from the key's values and the new state.
    """

    name: str
    create: str
    insert: str
    select: str
    update: str
    delete: str
    everything: str
    key: Callable[[int], tuple[Any, ...]]
    update_arguments: Callable[[tuple[Any, ...], str], tuple[Any, ...]]

    @property
    def texts(self) -> dict[str, tuple[Any, ...]]:
        """Every text with arguments to explain it with."""
        key = self.key(42)
        return {
            self.insert: (*key, "new"),
            self.select: key,
            self.update: self.update_arguments(key, "paid"),
            self.delete: key,
        }


ORDERS = Table(
    name="orders",
    create="CREATE TABLE orders (id INT PRIMARY KEY, state TEXT) DISTRIBUTED BY (id)",
    insert="INSERT INTO orders VALUES ($1, $2)",
    select="SELECT state FROM orders WHERE id = $1",
    update="UPDATE orders SET state = $1 WHERE id = $2",
    delete="DELETE FROM orders WHERE id = $1",
    everything="SELECT id, state FROM orders OPTION (SQL_MOTION_ROW_MAX = 0)",
    key=lambda number: (number,),
    update_arguments=lambda key, state: (state, *key),
)

PAYMENTS = Table(
    name="payments",
    create=("CREATE TABLE payments (shop TEXT, nr INT, state TEXT, PRIMARY KEY (shop, nr)) DISTRIBUTED BY (shop, nr)"),
    insert="INSERT INTO payments VALUES ($1, $2, $3)",
    select="SELECT state FROM payments WHERE shop = $1 AND nr = $2",
    update="UPDATE payments SET state = $1 WHERE nr = $2 AND shop = $3",
    delete="DELETE FROM payments WHERE shop = $1 AND nr = $2",
    everything="SELECT shop, nr, state FROM payments OPTION (SQL_MOTION_ROW_MAX = 0)",
    key=lambda number: (f"shop-{number % 7}", number),
    update_arguments=lambda key, state: (state, key[1], key[0]),
)

TABLES = (ORDERS, PAYMENTS)
