/* The engine as its supervisor sees it: one structure that the files of this folder share. Each part
   is filled by the file named beside it, in the order of bh_serve_main. */
#ifndef BH_SUPERVISOR_ENGINE_H
#define BH_SUPERVISOR_ENGINE_H

#include <sys/types.h>

#include "shm/bell.h"
#include "shm/control.h"
#include "shm/pagetable.h"
#include "shm/request.h"
#include "shm/status.h"
#include "shm/submit.h"
#include "shm/tokenlog.h"
#include "src/core/config.h"
#include "src/core/topology.h"
#include "src/supervisor/model_file.h"
#include "src/supervisor/plan.h"
#include "src/supervisor/pulse.h"

#define BH_NS_PER_MS UINT64_C(1000000)

/* What the supervisor looks at while it runs. Pool, weights, rings and logs of tokens are not here:
   it maps those for `verify` only, one at a time. */
struct bh_view {
    struct bh_control control; /* writable */
    struct bh_requests requests;
    struct bh_pagetable pagetable;
    struct bh_tokenlog tokenlog;
    struct bh_submit submit;
    struct bh_statusboard status[BH_ROLE_CNT]; /* [BH_ROLE_SUPERVISOR] is writable */
};

/* The way of one incarnation. Only `reap` leads out of KILLED, whatever time it takes. */
enum bh_child_phase {
    BH_CHILD_ABSENT = 0, /* before the first start, and after the last end */
    BH_CHILD_STARTING,   /* spawned; has not said `started` yet */
    BH_CHILD_UP,
    BH_CHILD_KILLED,  /* SIGKILL sent, not yet reaped */
    BH_CHILD_REAPED,  /* waits until the ledger has swept its epoch */
    BH_CHILD_BACKOFF, /* swept; waits for its pause to end */
};

struct bh_child {
    enum bh_child_phase phase;
    pid_t pid;
    int pidfd; /* -1 unless STARTING, UP or KILLED */
    uint32_t epoch;
    uint32_t start_ticks;
    struct bh_pulse pulse;
    struct bh_deaths deaths;
    uint64_t spawned_ns;
    uint64_t respawn_ns;
    uint64_t moved_ns; /* when the beat was seen to move last */
};

enum bh_stop_phase {
    BH_STOP_NO = 0,
    BH_STOP_DRAIN,  /* new requests are refused, live ones go on until the deadline */
    BH_STOP_CANCEL, /* live ones are being ended; time for their last frames */
    BH_STOP_NOW,    /* kill the roles */
};

struct bh_engine {
    struct bh_config config;
    struct bh_plan plan;        /* plan.c */
    struct bh_model_file model; /* model_file.c; closed once the weights are packed */
    char model_name[BH_MODEL_NAME_MAX];
    char url[128];          /* listener.c */
    char control_path[108]; /* control_socket.c */
    uint32_t tenant_cnt;    /* descriptors.c, as are these arrays */
    bool auth;
    int fds[BH_ITEM_CNT];          /* a region's writable descriptor, or the descriptor itself */
    int readonly_fds[BH_ITEM_CNT]; /* of regions; -1 elsewhere */
    size_t bytes[BH_ITEM_CNT];     /* of regions */
    int null_fd;                   /* standard input of roles */
    struct bh_view view;           /* memory.c */
    struct bh_renewal renewal;
    struct bh_child children[BH_ROLE_CNT]; /* spawn.c and fence.c; [BH_ROLE_SUPERVISOR] is unused */
    enum bh_stop_phase stop;               /* drain.c, as is the rest */
    uint64_t stop_ns;                      /* when the present phase of stopping ends */
    uint32_t idle_ticks;                   /* in a row on which every slot was free */
    uint64_t started_ns;
    bool ready;
    bool failed; /* a role kept dying: exit status 1 */
};

#endif
