/* The handler behind hooks in test builds. Items are parsed once; a hook compares names and counts. */
#include "src/core/inject.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shm/atomic.h"
#include "shm/hook.h"

#define ITEMS_MAX    16u
#define EXIT_STATUS  70
#define PAUSE_MS_MAX 600000ul

enum action { ACTION_FAULT, ACTION_KILL, ACTION_STOP, ACTION_EXIT, ACTION_PAUSE };

struct inject_item {
    const char *place; /* place_bytes bytes, not terminated */
    size_t place_bytes;
    uint32_t nth; /* 0: every time */
    enum action action;
    uint32_t pause_ms;
    struct bh_swap hits; /* team members pass hooks too */
};

static struct inject_item items[ITEMS_MAX];
static uint32_t item_cnt;

/* An unsigned number that fills [text, end); false for anything else. */
static bool
number_parse(const char *text, const char *end, unsigned long most, uint32_t *out)
{
    unsigned long value = 0;
    if (text == end) {
        return false;
    }
    for (; text < end; ++text) {
        if (*text < '0' || *text > '9') {
            return false;
        }
        value = value * 10 + (unsigned long)(*text - '0');
        if (value > most) {
            return false;
        }
    }
    *out = (uint32_t)value;
    return true;
}

static bool
action_parse(const char *text, const char *end, struct inject_item *item)
{
    static const char *const names[] = {"fault", "kill", "stop", "exit"};
    static const char pause[] = "pause_";
    size_t bytes = (size_t)(end - text);
    for (size_t i = 0; i < BH_COUNT(names); ++i) {
        if (strlen(names[i]) == bytes && memcmp(names[i], text, bytes) == 0) {
            item->action = (enum action)i;
            return true;
        }
    }
    item->action = ACTION_PAUSE;
    return bytes > strlen(pause) && memcmp(pause, text, strlen(pause)) == 0 &&
           number_parse(text + strlen(pause), end, PAUSE_MS_MAX, &item->pause_ms);
}

static const char *
find_last(const char *text, const char *end, char wanted)
{
    for (const char *at = end; at > text; --at) {
        if (at[-1] == wanted) {
            return at - 1;
        }
    }
    return NULL;
}

/* Read from the end: "=ACTION", "@EPOCH", ":NTH"; a ":" before anything but a number belongs to the
   place's name. */
static bool
item_parse(const char *text, const char *end, struct inject_item *item, uint32_t *epoch)
{
    *item = (struct inject_item){.action = ACTION_FAULT};
    *epoch = 0;
    const char *mark = find_last(text, end, '=');
    if (mark != NULL) {
        if (!action_parse(mark + 1, end, item)) {
            return false;
        }
        end = mark;
    }
    mark = find_last(text, end, '@');
    if (mark != NULL) {
        if (!number_parse(mark + 1, end, UINT32_MAX, epoch) || *epoch == 0) {
            return false;
        }
        end = mark;
    }
    mark = find_last(text, end, ':');
    if (mark != NULL && number_parse(mark + 1, end, UINT32_MAX, &item->nth)) {
        if (item->nth == 0) {
            return false;
        }
        end = mark;
    }
    item->place = text;
    item->place_bytes = (size_t)(end - text);
    return end > text;
}

static bool
act(const struct inject_item *item)
{
    struct timespec pause = {.tv_sec = item->pause_ms / 1000,
                             .tv_nsec = (long)(item->pause_ms % 1000) * 1000000};
    switch (item->action) {
    case ACTION_FAULT:
        return true;
    case ACTION_KILL:
        kill(getpid(), SIGKILL);
        break;
    case ACTION_STOP:
        kill(getpid(), SIGSTOP);
        break;
    case ACTION_EXIT:
        _exit(EXIT_STATUS);
    case ACTION_PAUSE:
        nanosleep(&pause, NULL);
        break;
    }
    return false;
}

static bool
handle(const char *place)
{
    bool fault = false;
    size_t bytes = strlen(place);
    for (uint32_t i = 0; i < item_cnt; ++i) {
        struct inject_item *item = &items[i];
        if (item->place_bytes == bytes && memcmp(item->place, place, bytes) == 0) {
            /* A ticket for this visit: atomic, so that NTH happens once whoever of the threads comes
               by. No edge is made: nothing else is concluded from it. */
            uint32_t hit = bh_swap_add(&item->hits, 1) + 1;
            fault |= (item->nth == 0 || item->nth == hit) && act(item);
        }
    }
    return fault;
}

enum bh_status
bh_inject_install(uint32_t epoch, const char **item)
{
    const char *text = getenv("BH_INJECT");
    item_cnt = 0;
    bh_hook_handler = NULL;
    while (text != NULL && *text != '\0') {
        const char *end = strchr(text, ',');
        end = end == NULL ? text + strlen(text) : end;
        uint32_t only_epoch = 0;
        struct inject_item parsed;
        *item = text;
        if (!item_parse(text, end, &parsed, &only_epoch)) {
            return BH_EINVAL;
        }
        if (only_epoch == 0 || only_epoch == epoch) {
            if (item_cnt == ITEMS_MAX) {
                return BH_ELIMIT;
            }
            items[item_cnt++] = parsed;
        }
        text = *end == ',' ? end + 1 : end;
    }
    if (item_cnt > 0) {
        bh_hook_handler = handle;
    }
    return BH_OK;
}
