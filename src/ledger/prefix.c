/* Prefixes: which pages of a request the cache already has, and which of its pages the cache may
   take. Both walk the same chain of hashes over the same tokens; tokens are compared, not only
   hashed, and a request's namespace and tenant are part of every question. */
#include "src/ledger/ledger.h"

#define PAGE_TOKENS_MAX 256u

/* One page of a request's prompt + log, as a key. */
struct page_key {
    struct bh_cache_key key;
    uint32_t tokens[PAGE_TOKENS_MAX];
};

static void
key_make(const struct bh_ledger *ledger,
         uint32_t slot,
         uint32_t ord,
         uint64_t parent,
         struct page_key *out)
{
    const struct bh_world *world = ledger->world;
    const struct bh_record *record = bh_ledger_record(ledger, slot);
    const uint32_t *prompt = bh_submit_prompt(&world->submit, slot);
    uint32_t page_tokens = world->limits.kv.page_tokens;
    BH_CHECK(page_tokens <= PAGE_TOKENS_MAX);
    for (uint32_t i = 0; i < page_tokens; i++) {
        uint32_t pos = ord * page_tokens + i;
        out->tokens[i] = pos < record->prompt_cnt
                             ? prompt[pos]
                             : *bh_log_token(&world->tokenlog, slot, pos - record->prompt_cnt);
    }
    out->key = (struct bh_cache_key){
        .tenant = record->tenant,
        .tokens = out->tokens,
        .entry = {.name_space = record->name_space,
                  .parent = parent,
                  .chain = bh_chain_next(parent, out->tokens, page_tokens)},
    };
}

static uint64_t
chain_begin(const struct bh_ledger *ledger, uint32_t slot)
{
    return bh_chain_start(ledger->world->control.block->hash_seed,
                          bh_ledger_record(ledger, slot)->name_space);
}

uint32_t
bh_ledger_prefix_find(struct bh_ledger *ledger, uint32_t slot, uint32_t page_max, uint64_t *chain)
{
    *chain = chain_begin(ledger, slot);
    if ((bh_ledger_record(ledger, slot)->flags & BH_RECORD_PROMPT_LOGPROBS) != 0) {
        return 0; /* every prompt token's distribution is wanted, so every one is computed */
    }
    uint32_t cnt = 0;
    while (cnt < page_max) {
        struct page_key page;
        key_make(ledger, slot, cnt, *chain, &page);
        if (!bh_cache_find(&ledger->stock.cache, &page.key, &ledger->hits[cnt])) {
            break;
        }
        *chain = page.key.entry.chain;
        cnt++;
    }
    return cnt;
}

/* Pages of the list that are full of tokens whose KV is known to be written and proved. */
static uint32_t
pages_proved(const struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    bool joined = facts->order.verb != BH_ORDER_NONE && facts->order.role == BH_ROLE_DECODE &&
                  facts->report.phase >= BH_REPORT_JOINED && facts->report.phase <= BH_REPORT_OK;
    if (!joined) {
        return 0;
    }
    const struct bh_record *record = bh_ledger_record(ledger, slot);
    /* A log that claims more than it may hold ends the request; here it must not lead out of it. */
    uint64_t log_cnt = bh_min_u64(facts->log.cnt, record->max_tokens);
    uint64_t tokens = record->prompt_cnt + log_cnt - 1;
    if (facts->request.state == BH_REQUEST_DECODE) {
        tokens = bh_min_u64(tokens, record->prompt_cnt);
    } else if (facts->request.state != BH_REQUEST_DONE) {
        return 0;
    }
    uint64_t pages = tokens / ledger->world->limits.kv.page_tokens;
    return (uint32_t)bh_min_u64(pages, facts->list.cnt);
}

void
bh_ledger_publish(struct bh_ledger *ledger, uint32_t slot, const struct bh_facts *facts)
{
    struct bh_slot_note *note = &ledger->notes[slot];
    uint32_t cnt = pages_proved(ledger, slot, facts);
    if (note->published >= cnt) {
        return;
    }
    if (note->published == 0) {
        note->chain = chain_begin(ledger, slot);
    }
    while (note->published < cnt) {
        struct page_key page;
        key_make(ledger, slot, note->published, note->chain, &page);
        struct bh_page handle = bh_list_page(&ledger->world->requests, slot, note->published);
        uint32_t idx = bh_page_idx(handle);
        struct bh_page_view view = bh_page_load(&ledger->world->pagetable, idx);
        uint32_t other;
        bool ours = view.state == BH_PAGE_HELD && view.owner == slot &&
                    view.gen == bh_page_gen(handle) && (view.flags & BH_PAGE_FLAGGED) == 0;
        /* Of two pages with the same content the first stays: it may be listed already. */
        if (ours && !bh_cache_find(&ledger->stock.cache, &page.key, &other)) {
            bh_stock_cache(&ledger->stock, idx, &page.key);
        }
        note->chain = page.key.entry.chain;
        note->published++;
    }
}
