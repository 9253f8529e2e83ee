/* Stopping: refuse, wait, cancel, wait a little, kill. */
#ifndef BH_SUPERVISOR_DRAIN_H
#define BH_SUPERVISOR_DRAIN_H

#include "src/supervisor/engine.h"

/* bh_drain_refuse - new requests are refused from now on, live ones go on; the engine keeps running. */
void bh_drain_refuse(struct bh_engine *engine);

/* bh_drain_stop - the same, and the engine ends when every slot is free, or --deadline seconds from
   now at the latest. Asked a second time: at once. */
void bh_drain_stop(struct bh_engine *engine, uint64_t now_ns);

/* bh_drain_tick - once a tick; moves engine->stop on. It is BH_STOP_NOW when the roles may be killed. */
void bh_drain_tick(struct bh_engine *engine, uint64_t now_ns);

#endif
