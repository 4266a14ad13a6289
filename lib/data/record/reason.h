/* reason.h - reasons of drops and errors, grouped. */
#ifndef VFM_DATA_RECORD_REASON_H
#define VFM_DATA_RECORD_REASON_H

#include <stddef.h>

/* Writes `why` [len] with numbers as "#", and quoted names and ids (words of 8 letters and digits or more) as "'...'",
 * so that similar reasons are equal.  A text that is too long is cut between characters. */
void vfm_reason_mask(char *text, size_t size, const char *why, size_t len);

#endif
