/* What all objects share: the check of the limits, the fingerprint of a layout, and the two
   halves of every `new` and `join`. */
#include "shm/object.h"

#include <string.h>
#include <xxhash.h>

#include "shm/hook.h"

/* The largest count of 24 bits: ordinals, page indices and token counts are packed into words. */
#define COUNT_24_MAX 0xffffffu

/* No pool may be larger, so that no footprint overflows 64 bits. */
#define POOL_BYTES_MAX (UINT64_C(1) << 46)

static_assert(sizeof(struct bh_limits) == 15 * sizeof(uint32_t),
              "no padding: limits are hashed whole");

static bool
within(uint32_t value, uint32_t min, uint32_t max)
{
    return value >= min && value <= max;
}

static bool
kv_ok(const struct bh_kv_shape *kv)
{
    return within(kv->layers, 1, 1024) && within(kv->kv_heads, 1, 1024) &&
           within(kv->head_dim, 1, 1024) && within(kv->page_tokens, 16, 256) &&
           (kv->page_tokens & (kv->page_tokens - 1)) == 0 &&
           (kv->elem_bytes == 2 || kv->elem_bytes == 4);
}

bool
bh_limits_ok(const struct bh_limits *limits)
{
    if (limits == NULL || !kv_ok(&limits->kv)) {
        return false;
    }
    if (!within(limits->slots, 1, 65536) || !within(limits->conns, 1, 65536) ||
        !within(limits->tenants, 1, 1024) || !within(limits->ctx, 2, COUNT_24_MAX) ||
        !within(limits->page_cnt, 2, COUNT_24_MAX) || !within(limits->rows_max, 1, 65536) ||
        !within(limits->chunk_max, 1, COUNT_24_MAX) ||
        !within(limits->reply_bytes, 1, UINT32_C(1) << 30) ||
        !within(limits->vocab, 1, COUNT_24_MAX)) {
        return false;
    }
    /* The longest sequence must fit the pool beside the null page: a published limit that the pool
       cannot hold is how requests end up with pages that nobody wrote. */
    uint32_t list_max = (limits->ctx + limits->kv.page_tokens - 1) / limits->kv.page_tokens;
    return limits->list_max == list_max && list_max < limits->page_cnt &&
           bh_kv_page_bytes(&limits->kv) <= POOL_BYTES_MAX / limits->page_cnt;
}

uint64_t
bh_object_layout(const char *name, uint32_t version, const struct bh_limits *limits)
{
    uint64_t hash = XXH3_64bits(name, strlen(name));
    hash = XXH3_64bits_withSeed(&version, sizeof(version), hash);
    return XXH3_64bits_withSeed(limits, sizeof(*limits), hash);
}

static bool
aligned(const void *mem)
{
    return mem != NULL && ((uintptr_t)mem % BH_CACHE_LINE) == 0;
}

enum bh_status
bh_object_prepare(void *mem, size_t bytes)
{
    if (!aligned(mem) || bytes < sizeof(struct bh_object_head)) {
        return BH_EINVAL;
    }
    struct bh_object_head *head = mem;
    /* edge object.magic: release; pairs with acquire in bh_object_check.
       Withdrawn first, so that a constructor that dies half way leaves no object. */
    bh_word_store(&head->magic, 0);
    head->layout = 0;
    head->bytes = 0;
    memset(head->zero, 0, sizeof(head->zero));
    return BH_OK;
}

void
bh_object_publish(void *mem, uint64_t layout, size_t bytes)
{
    struct bh_object_head *head = mem;
    head->layout = layout;
    head->bytes = bytes;
    BH_HOOK("object.new:before_magic");
    /* edge object.magic: release; pairs with acquire in bh_object_check.
       Makes the formatted object visible before it exists. */
    bh_word_store(&head->magic, BH_OBJECT_MAGIC);
}

enum bh_status
bh_object_check(const void *mem, size_t mem_bytes, uint64_t layout, size_t bytes)
{
    if (!aligned(mem) || bytes < sizeof(struct bh_object_head) || mem_bytes < bytes) {
        return BH_EINVAL;
    }
    const struct bh_object_head *head = mem;
    /* edge object.magic: acquire; pairs with release in bh_object_publish. */
    if (bh_word_load(&head->magic) != BH_OBJECT_MAGIC) {
        return BH_ECORRUPT;
    }
    if (head->layout != layout || head->bytes != bytes) {
        return BH_ECORRUPT;
    }
    return BH_OK;
}

enum bh_status
bh_object_verify(const struct bh_object_head *head)
{
    /* edge object.magic: acquire; pairs with release in bh_object_publish. */
    if (bh_word_load(&head->magic) != BH_OBJECT_MAGIC || head->bytes < sizeof(*head)) {
        return BH_ECORRUPT;
    }
    for (size_t i = 0; i < BH_COUNT(head->zero); i++) {
        if (head->zero[i] != 0) {
            return BH_ECORRUPT;
        }
    }
    return BH_OK;
}
