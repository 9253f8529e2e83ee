/* The process map as a picture: an aligned table for people, Graphviz for slides. Both are made from
   the same rows that make the memory, so they cannot be out of date. */
#include "src/core/topology.h"

#include <ctype.h>

#define NAME_WIDTH 24

/* Ring and status rows are named after role ids; people read lower case. */
static void
print_lower(FILE *out, const char *text, int width)
{
    int printed = 0;
    for (; text[printed] != '\0'; ++printed) {
        fputc(tolower((unsigned char)text[printed]), out);
    }
    fprintf(out, "%*s", printed < width ? width - printed : 1, "");
}

static char
letter_of(const struct bh_item *item, uint32_t role)
{
    switch (item->rights[role]) {
    case BH_RIGHT_WRITE:
        return item->kind == BH_ITEM_DESCRIPTOR ? 'x' : 'w';
    case BH_RIGHT_READ:
        return 'r';
    case BH_RIGHT_NONE:
        break;
    }
    return '.';
}

static void
print_kind(FILE *out, enum bh_item_kind first, enum bh_item_kind last)
{
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        const struct bh_item *item = bh_topology_item((enum bh_item_id)id);
        if (item->kind < first || item->kind > last) {
            continue;
        }
        fputs("  ", out);
        print_lower(out, item->name, NAME_WIDTH);
        for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
            fprintf(out, "%c  ", letter_of(item, role));
        }
        fprintf(out, " %s\n", item->what);
    }
}

static void
print_heading(FILE *out, const char *title)
{
    fprintf(out, "\n%-*s", NAME_WIDTH, title);
    for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
        fprintf(out, "  %c", toupper((unsigned char)bh_role_name(role)[0]));
    }
    fputc('\n', out);
}

void
bh_topology_print(FILE *out)
{
    fputs("processes\n", out);
    for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
        fprintf(out,
                "  %c %-11s %s\n",
                toupper((unsigned char)bh_role_name(role)[0]),
                bh_role_name(role),
                bh_role_mission(role));
    }
    fputs("\nrings (hints only: each says \"look there\")\n", out);
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        const struct bh_item *item = bh_topology_item((enum bh_item_id)id);
        if (item->kind == BH_ITEM_RING) {
            fprintf(out,
                    "  %10s --> %-10s %s\n",
                    bh_role_name(item->producer),
                    bh_role_name(item->consumer),
                    item->what);
        }
    }
    print_heading(out, "memory (w r .)");
    print_kind(out, BH_ITEM_REGION, BH_ITEM_RING);
    print_heading(out, "descriptors (x .)");
    print_kind(out, BH_ITEM_DESCRIPTOR, BH_ITEM_DESCRIPTOR);
    fputs("\n  w mapped writable   r mapped read-only, and the kernel refuses more   x has it\n"
          "  . not there at all: neither the memory nor a descriptor of it\n",
          out);
}

static void
dot_region(FILE *out, const struct bh_item *item)
{
    fprintf(out, "    \"%s\" [shape=cylinder, tooltip=\"%s\"];\n", item->name, item->what);
    for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
        if (item->rights[role] == BH_RIGHT_WRITE) {
            fprintf(out, "    %s -> \"%s\" [style=bold];\n", bh_role_name(role), item->name);
        } else if (item->rights[role] == BH_RIGHT_READ && role != BH_ROLE_SUPERVISOR) {
            fprintf(out, "    \"%s\" -> %s [style=dashed];\n", item->name, bh_role_name(role));
        }
    }
}

void
bh_topology_print_dot(FILE *out)
{
    fputs("digraph bulkhead {\n    rankdir=LR;\n    node [fontname=\"sans-serif\"];\n", out);
    for (uint32_t role = 0; role < BH_ROLE_CNT; ++role) {
        fprintf(out,
                "    %s [shape=box, style=filled, fillcolor=lightblue, tooltip=\"%s\"];\n",
                bh_role_name(role),
                bh_role_mission(role));
    }
    for (uint32_t id = 0; id < BH_ITEM_CNT; ++id) {
        const struct bh_item *item = bh_topology_item((enum bh_item_id)id);
        if (item->kind == BH_ITEM_REGION) {
            dot_region(out, item);
        } else if (item->kind == BH_ITEM_RING) {
            fprintf(out,
                    "    %s -> %s [color=darkorange, label=\"%s\"];\n",
                    bh_role_name(item->producer),
                    bh_role_name(item->consumer),
                    item->what);
        }
    }
    fputs("}\n", out);
}
