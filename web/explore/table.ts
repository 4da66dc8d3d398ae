/** A table whose columns sort. */

import { element } from "../page/dom.js";

export interface Column<T> {
  title: string;
  cell: (row: T) => Node | string;
  key: (row: T) => number | string;
  number?: boolean;
}

export function table<T>(label: string, columns: readonly Column<T>[], rows: readonly T[]): HTMLElement {
  const body = element("tbody");
  const fill = (sorted: readonly T[]) => {
    body.replaceChildren(
      ...sorted.map((row) =>
        element(
          "tr",
          "",
          ...columns.map(({ cell, number }) => element("td", number ? "number" : "", cell(row))),
        ),
      ),
    );
  };
  const head = element("tr");
  columns.forEach(({ title, key, number }) => {
    const sort = element("button", "sort", title);
    sort.type = "button";
    const cell = element("th", number ? "number" : "", sort);
    cell.scope = "col";
    sort.onclick = () => {
      const down = cell.getAttribute("aria-sort") !== (number ? "descending" : "ascending");
      const sign = (number ? -1 : 1) * (down ? 1 : -1);
      for (const other of head.children) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      fill(
        rows.toSorted((a, b) => {
          const [x, y] = [key(a), key(b)];
          return sign * (x < y ? -1 : x > y ? 1 : 0);
        }),
      );
    };
    head.append(cell);
  });
  fill(rows);
  const made = element("table", "", element("caption", "", label), element("thead", "", head), body);
  const holder = element("div", "wide-table", made);
  holder.tabIndex = 0;
  holder.setAttribute("role", "region");
  holder.setAttribute("aria-label", label);
  return holder;
}
