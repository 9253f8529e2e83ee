/* What prefill and decode have in common besides sequences: the model, reports, and the turn. */
#ifndef BH_WORKER_WORKER_H
#define BH_WORKER_WORKER_H

#include "src/core/world.h"
#include "src/model/model.h"
#include "src/worker/sequence.h"

struct bh_worker {
    struct bh_world *world;
    struct bh_reports *reports; /* this worker's own */
    struct bh_team *team;
    struct bh_model *model;
    struct bh_forward *forward;
    uint32_t turn_member;
    bool *attend; /* [slots] slots that must be looked at */
    bool attend_any;
};

/* bh_worker_open - join the packed weights. Logs what to do on failure. */
BH_MUST_USE enum bh_status bh_worker_open(struct bh_worker *worker,
                                          struct bh_world *world,
                                          struct bh_reports *reports,
                                          uint32_t turn_member);
/* bh_worker_start - make the team and the scratch for batches. */
BH_MUST_USE enum bh_status
bh_worker_start(struct bh_worker *worker, uint32_t rows_max, uint32_t seqs_max);

/* bh_worker_hints - read all hints of the ledger's ring into `attend`. Every other kind, and every
   slot out of range, is refused and counted. on_dirty, where given, gets the pages of DIRTY hints. */
typedef void bh_dirty_fn(void *role, uint32_t page_idx);
uint32_t bh_worker_hints(struct bh_worker *worker, bh_dirty_fn *on_dirty, void *role);
/* bh_worker_attend_all - a scan: look at every slot. */
void bh_worker_attend_all(struct bh_worker *worker);

/* bh_worker_look - what does the order of `slot` ask of this worker now? */
enum bh_call {
    BH_CALL_NOTHING, /* not ours, or answered already */
    BH_CALL_RUN,     /* *live is to be worked on */
    BH_CALL_RELEASE, /* ours, unanswered, and over: release it, even if nothing was begun */
};
enum bh_call bh_worker_look(struct bh_worker *worker, uint32_t slot, struct bh_live *live);

/* bh_worker_report - store the report for this order and tell the ledger. */
void bh_worker_report(struct bh_worker *worker,
                      const struct bh_live *live,
                      enum bh_report_phase phase,
                      uint32_t cause,
                      uint32_t arg);
/* bh_worker_fault - count the violation and release the order with it. */
void bh_worker_fault(struct bh_worker *worker,
                     const struct bh_live *live,
                     enum bh_violation violation,
                     uint32_t ord);

/* bh_worker_take_turn - wait until this worker may compute; overrules a holder that does not move.
   Returns how long it waited, in ns. */
uint64_t bh_worker_take_turn(struct bh_worker *worker);
/* bh_worker_pass_turn - a yield point; `done`: nothing more to compute. */
void bh_worker_pass_turn(struct bh_worker *worker, bool done);

#endif
