/* near.h - suggestions for misspelled words. */
#ifndef VFM_BASE_NEAR_H
#define VFM_BASE_NEAR_H

/* Returns the entry of the NULL-terminated list with the fewest edits to `word`.  An edit inserts, deletes or changes a
 * letter, or swaps two neighbours.  If no entry is close enough, returns one that begins with `word`, or NULL. */
const char *vfm_near(const char *word, const char *const *list);

#endif
