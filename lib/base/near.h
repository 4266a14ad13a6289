/* near.h - suggestions for misspelled words. */
#ifndef VFM_BASE_NEAR_H
#define VFM_BASE_NEAR_H

/* Returns the entry of the NULL-terminated list with the fewest edits to `word` (a letter inserted, deleted or changed,
 * or two neighbours swapped).  If none is close enough, returns an entry that begins with word, or NULL. */
const char *vfm_near(const char *word, const char *const *list);

#endif
