/* From sandbox.def to a seccomp filter, through libseccomp. */
#include "src/core/sandbox.h"

#include <errno.h>
#include <netinet/in.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <unistd.h>

#include "src/core/topology.h"

enum limit_kind { LIMIT_ANY, LIMIT_EQ, LIMIT_CLEAR, LIMIT_SELF, LIMIT_LOG, LIMIT_BELLS };

struct limit {
    enum limit_kind kind;
    uint32_t arg_idx;
    uint64_t value;
};

struct row {
    char roles[BH_ROLE_CNT]; /* letters of roles 1.., NUL-terminated */
    int call;
    uint32_t action;
    struct limit limit;
};

/* clang-format off */
#define ANY {.kind = LIMIT_ANY}
#define EQ(arg, wanted) {.kind = LIMIT_EQ, .arg_idx = (arg), .value = (wanted)}
#define CLEAR(arg, bits) {.kind = LIMIT_CLEAR, .arg_idx = (arg), .value = (bits)}
#define SELF(arg) {.kind = LIMIT_SELF, .arg_idx = (arg)}
#define LOG {.kind = LIMIT_LOG}
#define BELLS {.kind = LIMIT_BELLS}

static const struct row rows[] = {
#define ALLOW(roles_, call_, limit_, why) \
    {.roles = roles_, .call = SCMP_SYS(call_), .action = SCMP_ACT_ALLOW, .limit = limit_},
#define REFUSE(roles_, call_, errno_, why) \
    {.roles = roles_, .call = SCMP_SYS(call_), .action = SCMP_ACT_ERRNO(errno_), .limit = ANY},
#include "src/core/sandbox.def"
#undef ALLOW
#undef REFUSE
};
/* clang-format on */

/* libseccomp returns -errno. */
static enum bh_status
status_of(int result)
{
    if (result == 0) {
        return BH_OK;
    }
    errno = -result;
    return BH_ESYS;
}

/* Argument arg_idx, under `mask`, is `value`. */
static enum bh_status
add_masked(
    scmp_filter_ctx filter, const struct row *row, uint32_t arg_idx, uint64_t mask, uint64_t value)
{
    struct scmp_arg_cmp compare = {
        .arg = arg_idx, .op = SCMP_CMP_MASKED_EQ, .datum_a = mask, .datum_b = value};
    return status_of(seccomp_rule_add_array(filter, row->action, row->call, 1, &compare));
}

/* The kernel reads an int from the low half of the register; what stands above it is nobody's. */
static enum bh_status
add_equal(scmp_filter_ctx filter, const struct row *row, uint32_t arg_idx, uint64_t value)
{
    return add_masked(filter, row, arg_idx, UINT32_MAX, value);
}

/* One rule a bell: the bells a role has are the topology's decision, not this table's. */
static enum bh_status
add_bells(scmp_filter_ctx filter, const struct row *row, uint32_t role)
{
    enum bh_status status = BH_OK;
    for (uint32_t id = BH_ITEM_fd_bell_tokenizer; id <= BH_ITEM_fd_bell_egress; ++id) {
        int fd = bh_topology_fd(role, (enum bh_item_id)id);
        if (fd >= 0 && status == BH_OK) {
            status = add_equal(filter, row, 0, (uint64_t)fd);
        }
    }
    return status;
}

static enum bh_status
add_row(scmp_filter_ctx filter, const struct row *row, uint32_t role)
{
    const struct limit *limit = &row->limit;
    enum bh_status status = BH_EINVAL;
    switch (limit->kind) {
    case LIMIT_ANY:
        return status_of(seccomp_rule_add_array(filter, row->action, row->call, 0, NULL));
    case LIMIT_EQ:
        return add_equal(filter, row, limit->arg_idx, limit->value);
    case LIMIT_CLEAR:
        return add_masked(filter, row, limit->arg_idx, limit->value, 0);
    case LIMIT_SELF:
        return add_equal(filter, row, limit->arg_idx, (uint64_t)getpid());
    case LIMIT_LOG:
        status = add_equal(filter, row, 0, STDOUT_FILENO);
        return status == BH_OK ? add_equal(filter, row, 0, STDERR_FILENO) : status;
    case LIMIT_BELLS:
        return add_bells(filter, row, role);
    }
    return status;
}

static enum bh_status
filter_build(scmp_filter_ctx filter, uint32_t role)
{
    /* All threads or none: a team member without the filter would be the hole in the wall. */
    enum bh_status status = status_of(seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1));
    if (status == BH_OK) {
        status =
            status_of(seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS));
    }
    for (size_t i = 0; i < BH_COUNT(rows) && status == BH_OK; ++i) {
        if (rows[i].roles[role - BH_ROLE_TOKENIZER] == 'x') {
            status = add_row(filter, &rows[i], role);
        }
    }
    return status;
}

enum bh_status
bh_sandbox_enter(uint32_t role)
{
    if (role < BH_ROLE_TOKENIZER || role >= BH_ROLE_CNT) {
        return BH_EINVAL;
    }
    scmp_filter_ctx filter = seccomp_init(SCMP_ACT_KILL_PROCESS);
    if (filter == NULL) {
        errno = ENOMEM;
        return BH_ESYS;
    }
    enum bh_status status = filter_build(filter, role);
    if (status == BH_OK) {
        status = status_of(seccomp_load(filter));
    }
    int saved = errno;
    seccomp_release(filter);
    errno = saved;
    return status;
}
