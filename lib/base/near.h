/* near.h - "did you mean": the word that was probably meant. */
#ifndef VFM_BASE_NEAR_H
#define VFM_BASE_NEAR_H

/* The entry of the NULL-terminated list that is closest to `word` (edits of one letter: insert,
 * delete, change, swap of neighbours), or NULL if none is close enough to be a slip; then one that begins
 * with word, which was an attempt at an abbreviation. */
const char *vfm_near(const char *word, const char *const *list);

#endif
