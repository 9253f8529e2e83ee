/* The request record: what a client asked for, written once by a tokenizer before the request
   exists and never changed afterwards. A base type without behaviour; the submission table
   (shm/submit.h) holds one per slot. All text is bytes with a length. */
#ifndef BH_SHM_RECORD_H
#define BH_SHM_RECORD_H

#include "shm/base.h"

#define BH_STOP_MAX       16   /* stop strings of one request */
#define BH_STOP_BYTES_MAX 1024 /* all of them together */
#define BH_STOP_IDS_MAX   32
#define BH_CHOICES_MAX    64 /* n times the number of prompts of one question */
#define BH_MODEL_NAME_MAX 96

/* Why an answer ended well. */
enum bh_finish { BH_FINISH_NONE = 0, BH_FINISH_STOP = 1, BH_FINISH_LENGTH = 2 };

enum bh_record_flag {
    BH_RECORD_CHAT = 1u << 0, /* chat shapes; else completions shapes */
    BH_RECORD_STREAM = 1u << 1,
    BH_RECORD_USAGE = 1u << 2, /* stream_options.include_usage */
    BH_RECORD_ECHO = 1u << 3,  /* completions: the prompt comes back before the answer */
    BH_RECORD_IGNORE_EOS = 1u << 4,
    BH_RECORD_PROMPT_LOGPROBS = 1u
                                << 5, /* echo with logprobs: prefill computes the prompt's too, and
                                            takes nothing from the prefix cache */
    BH_RECORD_CLOSE = 1u << 6,        /* the connection ends after the answer */
    BH_RECORD_HTTP10 = 1u << 7,       /* the answer may not be chunked */
};

/* One request, that is one choice of one question. A question with n choices or several prompts is
   `choice_cnt` records linked by next_slot, all with the same conn, question and id. */
struct bh_record {
    uint32_t slot;
    uint32_t gen;
    uint32_t tenant; /* index into the key file, from 0 */
    uint32_t conn_idx;
    uint32_t conn_gen;
    uint32_t question;   /* number of the question on its connection, from 1 */
    uint32_t choice_idx; /* `index` of the choice in the answer */
    uint32_t choice_cnt;
    uint32_t next_slot; /* slot of the next choice, or UINT32_MAX */
    uint32_t next_gen;
    uint32_t prompt_cnt; /* tokens in the slot's part of the prompt arena; at least 1 */
    uint32_t prompt_idx; /* which prompt of the question: usage counts each prompt once */
    uint32_t
        max_tokens;   /* of the answer; prompt_cnt + max_tokens <= ctx; may be 0 only with echo */
    uint32_t flags;   /* enum bh_record_flag */
    int32_t logprobs; /* -1: none; else number of alternatives, 0..20 */
    uint32_t top_k;
    float temperature;
    float top_p;
    float min_p;
    uint32_t stop_cnt;
    uint64_t name_space; /* of the prefix cache: a keyed hash of the tenant */
    uint64_t seed;
    uint64_t id[2];       /* random; printed in hexadecimal as the answer's id */
    uint64_t created_s;   /* Unix time for the answer's `created` */
    uint64_t accepted_ns; /* CLOCK_MONOTONIC when the question was complete */
    uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: none */
    uint32_t stop_id_cnt;
    uint32_t stop_ids[BH_STOP_IDS_MAX];
    uint16_t stop_end[BH_STOP_MAX]; /* end offset of stop string i in stop_bytes */
    char stop_bytes[BH_STOP_BYTES_MAX];
    uint32_t zero;
};

#endif
