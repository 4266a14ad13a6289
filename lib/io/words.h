/* words.h - divides a command line into words without a shell. */
#ifndef VFM_IO_WORDS_H
#define VFM_IO_WORDS_H

#include "base/err.h"

/* Divides text at blanks, as a shell does: '…' and "…" quote, a backslash takes the next character as it is (within "…"
 * only before " and \).  Nothing is expanded.  Returns a list that ends in NULL, freed with vfm_exec_words_free, or
 * NULL with VFM_EUSAGE: no word, or an open quote. */
char **vfm_exec_words(const char *text, struct vfm_err *err);
void vfm_exec_words_free(char **words); /* accepts NULL */

#endif
