/* Reports: layout and checks. */
#include "shm/report.h"

#include <string.h>

#define REPORTS_VERSION 1u

struct sections {
    size_t words;
    size_t scrubbed;
    size_t bytes;
};

static struct sections
lay_out(const struct bh_limits *limits)
{
    struct sections at = {.bytes = sizeof(struct bh_object_head)};
    at.words = bh_object_place(&at.bytes, limits->slots * sizeof(struct bh_word));
    at.scrubbed = bh_object_place(&at.bytes, limits->page_cnt * sizeof(struct bh_word));
    return at;
}

size_t
bh_reports_footprint(const struct bh_limits *limits)
{
    return bh_limits_ok(limits) ? lay_out(limits).bytes : 0;
}

enum bh_status
bh_reports_new(void *mem, const struct bh_limits *limits)
{
    size_t bytes = bh_reports_footprint(limits);
    enum bh_status status = bh_object_prepare(mem, bytes);
    if (status != BH_OK) {
        return status;
    }
    memset(
        (uint8_t *)mem + sizeof(struct bh_object_head), 0, bytes - sizeof(struct bh_object_head));
    bh_object_publish(mem, bh_object_layout("reports", REPORTS_VERSION, limits), bytes);
    return BH_OK;
}

enum bh_status
bh_reports_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_reports *out)
{
    size_t footprint = bh_reports_footprint(limits);
    if (footprint == 0) {
        return BH_EINVAL;
    }
    uint64_t layout = bh_object_layout("reports", REPORTS_VERSION, limits);
    enum bh_status status = bh_object_check(mem, bytes, layout, footprint);
    if (status == BH_OK) {
        struct sections at = lay_out(limits);
        uint8_t *base = mem;
        *out = (struct bh_reports){.head = mem,
                                   .words = (void *)(base + at.words),
                                   .scrubbed = (void *)(base + at.scrubbed),
                                   .slots = limits->slots,
                                   .page_cnt = limits->page_cnt};
    }
    return status;
}

void
bh_reports_leave(struct bh_reports *reports)
{
    *reports = (struct bh_reports){0};
}

static bool
report_ok(struct bh_report report)
{
    if (report.phase > BH_REPORT_FAULT) {
        return false;
    }
    /* A phase answers an order, and orders are numbered from 1; only a fault has a cause. */
    if (report.phase != BH_REPORT_NONE && report.seq == 0) {
        return false;
    }
    return report.phase == BH_REPORT_FAULT
               ? report.cause > BH_VIOLATION_NONE && report.cause <= BH_VIOLATION_HANDLE
               : report.cause == 0;
}

enum bh_status
bh_reports_verify(const struct bh_reports *reports)
{
    enum bh_status status = bh_object_verify(reports->head);
    for (uint32_t slot = 0; status == BH_OK && slot < reports->slots; slot++) {
        if (!report_ok(bh_report_load(reports, slot))) {
            status = BH_ECORRUPT;
        }
    }
    for (uint32_t page_idx = 0; status == BH_OK && page_idx < reports->page_cnt; page_idx++) {
        /* edge scrubbed.word: acquire; pairs with release in bh_scrubbed_store. */
        if ((bh_word_load(&reports->scrubbed[page_idx]) >> 32) != 0) {
            status = BH_ECORRUPT;
        }
    }
    return status;
}
