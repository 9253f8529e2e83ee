/* Reports: a worker's answers to its orders, and the scrubber's.

   Purpose    Says how far an order was carried out, and when the worker has let go of the pages.
   Layout     head 64 | reports [slots], one word each | scrubbed [page_cnt], one word each
   Writers    One worker (each worker has its own object).
   Ordering   edge report.word, edge scrubbed.word: everything the worker did before is visible.
   Progress   Wait-free.
   Death      The last report stands; the ledger treats a reaped worker's orders as released.
   Cost       One word an order and phase. */
#ifndef BH_SHM_REPORT_H
#define BH_SHM_REPORT_H

#include "shm/atomic.h"
#include "shm/object.h"

enum bh_report_phase {
    BH_REPORT_NONE = 0,
    BH_REPORT_JOINED = 1, /* all pages proved; arg: pages proved */
    BH_REPORT_WANT = 2,   /* joined, and wants its list to be `arg` pages long */
    BH_REPORT_OK =
        3, /* released from here on. arg: tokens written (prefill), in the log (decode) */
    BH_REPORT_STOPPED = 4, /* released because the order or the request ended */
    BH_REPORT_FAULT = 5,   /* released; cause: enum bh_violation; arg: ordinal of the page */
};

/* Report word: seq 32 | phase 4 | cause 4 | arg 24. */
struct bh_report {
    uint32_t seq;
    enum bh_report_phase phase;
    uint32_t cause;
    uint32_t arg;
};

struct bh_reports {
    struct bh_object_head *head;
    struct bh_word *words;    /* [slots] */
    struct bh_word *scrubbed; /* [page_cnt] generation for which the page was wiped */
    uint32_t slots;
    uint32_t page_cnt;
};

size_t bh_reports_footprint(const struct bh_limits *limits);
BH_MUST_USE enum bh_status bh_reports_new(void *mem, const struct bh_limits *limits);
BH_MUST_USE enum bh_status
bh_reports_join(void *mem, size_t bytes, const struct bh_limits *limits, struct bh_reports *out);
void bh_reports_leave(struct bh_reports *reports);
BH_MUST_USE enum bh_status bh_reports_verify(const struct bh_reports *reports);

static inline bool
bh_report_released(enum bh_report_phase phase)
{
    return phase >= BH_REPORT_OK;
}

static inline struct bh_report
bh_report_load(const struct bh_reports *reports, uint32_t slot)
{
    /* edge report.word: acquire; pairs with release in bh_report_store. */
    uint64_t word = bh_word_load(&reports->words[slot]);
    return (struct bh_report){.seq = (uint32_t)(word >> 32),
                              .phase = (enum bh_report_phase)((word >> 28) & 0xfu),
                              .cause = (uint32_t)(word >> 24) & 0xfu,
                              .arg = (uint32_t)word & 0xffffffu};
}

static inline void
bh_report_store(struct bh_reports *reports, uint32_t slot, struct bh_report report)
{
    /* edge report.word: release; pairs with acquire in bh_report_load. */
    bh_word_store(&reports->words[slot],
                  ((uint64_t)report.seq << 32) | ((uint64_t)(report.phase & 0xfu) << 28) |
                      ((uint64_t)(report.cause & 0xfu) << 24) | (report.arg & 0xffffffu));
}

/* Scrubbed words: generation for which the page was wiped; page_idx below page_cnt. */
static inline uint32_t
bh_scrubbed_load(const struct bh_reports *reports, uint32_t page_idx)
{
    /* edge scrubbed.word: acquire; pairs with release in bh_scrubbed_store. */
    return (uint32_t)bh_word_load(&reports->scrubbed[page_idx]);
}

static inline void
bh_scrubbed_store(struct bh_reports *reports, uint32_t page_idx, uint32_t gen)
{
    /* edge scrubbed.word: release; pairs with acquire in bh_scrubbed_load. */
    bh_word_store(&reports->scrubbed[page_idx], gen);
}

#endif
