/* Verdicts about roles from beats and deaths. */
#include "src/supervisor/pulse.h"

#define SECOND_NS    UINT64_C(1000000000)
#define PAUSE_MAX_MS 3200u

bool
bh_pulse_dead(struct bh_pulse *pulse, uint64_t beat, bool counted)
{
    if (pulse->beat != beat) {
        pulse->beat = beat;
        pulse->missed = 0;
    } else if (counted) {
        pulse->missed += 1;
    }
    return pulse->missed >= BH_BEAT_TICKS;
}

bool
bh_deaths_note(struct bh_deaths *deaths, uint64_t now_ns, uint64_t lived_ns)
{
    if (deaths->pause_ms == 0 || lived_ns >= 10 * SECOND_NS) {
        deaths->pause_ms = BH_BACKOFF_MS;
    } else {
        deaths->pause_ms = (uint32_t)bh_min_u64((uint64_t)deaths->pause_ms * 2, PAUSE_MAX_MS);
    }
    /* The place that is about to be overwritten holds the death RESTARTS_MAX before this one; the
       oldest of the last RESTARTS_MAX is the one after it. */
    deaths->at_ns[deaths->cnt % BH_RESTARTS_MAX] = now_ns;
    deaths->cnt += 1;
    if (deaths->cnt < BH_RESTARTS_MAX) {
        return false;
    }
    return now_ns - deaths->at_ns[deaths->cnt % BH_RESTARTS_MAX] <= 60 * SECOND_NS;
}

uint32_t
bh_renewal_next(struct bh_renewal *renewal, struct bh_renewal_view view, uint64_t now_ns)
{
    uint64_t usable = view.page_cnt - 1 - bh_min_u64(view.quarantined, view.page_cnt - 1);
    bool locked = view.quarantined > view.page_cnt / BH_QUARANTINE_PART ||
                  (view.quarantined > 0 && usable < view.list_max);
    if (!view.workers_up) {
        return BH_ROLE_SUPERVISOR;
    }
    if (renewal->half) {
        /* Half a round frees nothing, so it is finished whatever the count says now. */
        renewal->half = false;
        renewal->rest_ns = now_ns + BH_RENEWAL_MS * UINT64_C(1000000);
        return BH_ROLE_DECODE;
    }
    if (!locked || now_ns < renewal->rest_ns) {
        return BH_ROLE_SUPERVISOR;
    }
    renewal->half = true;
    return BH_ROLE_PREFILL;
}
