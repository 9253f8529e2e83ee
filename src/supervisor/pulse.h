/* The pulse of one role, as judged by the supervisor's own tick count, the pace of its restarts, and
   when workers are fenced for the sake of quarantined pages. Pure: what is seen and when comes in, a verdict goes out. */
#ifndef BH_SUPERVISOR_PULSE_H
#define BH_SUPERVISOR_PULSE_H

#include "shm/object.h"
#include "src/core/config.h"

struct bh_pulse {
    uint64_t beat;
    uint32_t missed; /* ticks in a row on which the beat had not moved */
};

/* bh_pulse_dead - judge one tick. A tick that came late is not `counted`: the whole machine was
   paused or overloaded, and the role had no chance to beat either. Returns true when BH_BEAT_TICKS
   counted ticks in a row saw no beat. */
bool bh_pulse_dead(struct bh_pulse *pulse, uint64_t beat, bool counted);

/* Times of the last deaths of one role. */
struct bh_deaths {
    uint64_t at_ns[BH_RESTARTS_MAX];
    uint32_t cnt; /* all deaths ever */
    uint32_t pause_ms;
};

/* bh_deaths_note - one more, at now_ns, after a life of lived_ns. Sets pause_ms, the time to wait
   before the restart: BH_BACKOFF_MS, doubling up to 3200 ms, and back to it after 10 s of life.
   Returns true when BH_RESTARTS_MAX deaths, this one included, lie within a minute. */
bool bh_deaths_note(struct bh_deaths *deaths, uint64_t now_ns, uint64_t lived_ns);

/* Fencing workers for the sake of quarantined pages: prefill, then decode, then a rest. */
struct bh_renewal {
    bool half;        /* prefill was fenced, decode is next */
    uint64_t rest_ns; /* no new round before */
};

/* What is known of the pool and the workers at this tick. */
struct bh_renewal_view {
    uint64_t quarantined; /* pages */
    uint32_t page_cnt;    /* null page included */
    uint32_t list_max;    /* pages of the longest sequence */
    bool workers_up;      /* prefill and decode, both */
};

/* bh_renewal_next - a page leaves quarantine when every worker that may have it is gone. That is worth
   a fence when more than 1/BH_QUARANTINE_PART of the pool is locked up, or when the longest sequence
   no longer fits the rest. Returns the role to fence now, or BH_ROLE_SUPERVISOR for none; one worker
   at a time, the second when the first is up again. */
uint32_t bh_renewal_next(struct bh_renewal *renewal, struct bh_renewal_view view, uint64_t now_ns);

#endif
