/* API keys and the tenants they stand for. The file has one `key tenant` a line; empty lines and
   lines that begin with # are skipped. Several keys may name one tenant. Without a file there is
   one tenant, 0 "default", and every request is his. */
#ifndef BH_API_KEYS_H
#define BH_API_KEYS_H

#include "shm/base.h"

#define BH_KEYS_MAX        1024u
#define BH_KEY_BYTES_MIN   8u /* shorter keys can be guessed */
#define BH_KEY_BYTES_MAX   128u
#define BH_TENANTS_MAX     256u
#define BH_TENANT_NAME_MAX 33u  /* with the NUL; letters, digits, '_', '-' and '.' */
#define BH_KEYS_ERROR_MAX  160u /* with the NUL */

struct bh_keys; /* immutable after new */

/* bh_keys_new - read the text of a key file, or with text NULL make the single tenant without keys.
   BH_OK      *keys is to be released with bh_keys_delete
   BH_EINVAL  error[0..BH_KEYS_ERROR_MAX) names the line and what is wrong; never holds a key
   BH_ELIMIT  more keys or tenants than the limits; `error` names the line
   BH_ESYS    no memory */
BH_MUST_USE enum bh_status
bh_keys_new(const char *text, size_t len, struct bh_keys **keys, char *error);

/* bh_keys_delete - wipe and release; NULL is allowed. */
void bh_keys_delete(struct bh_keys *keys);

/* bh_keys_find - the tenant of a token (NULL: none was sent). Takes the same time whichever key
   matches and wherever a wrong one differs; only the token's length can show.
   BH_OK      *tenant is below bh_keys_tenant_cnt
   BH_EINVAL  no such key: 401 */
BH_MUST_USE enum bh_status
bh_keys_find(const struct bh_keys *keys, const char *token, size_t token_len, uint32_t *tenant);

/* bh_keys_tenant_cnt, bh_keys_tenant_name - the tenants, in the order of the file. The name
   lives as long as `keys`; NULL if tenant is not below the count. */
uint32_t bh_keys_tenant_cnt(const struct bh_keys *keys);
const char *bh_keys_tenant_name(const struct bh_keys *keys, uint32_t tenant);

/* bh_keys_required - whether requests need a key at all. */
bool bh_keys_required(const struct bh_keys *keys);

#endif
