#include "io/words.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n';
}

/* Appends the word at *p to b.  Returns the quote that stays open, 0 if none. */
static char read_word(const char **p, struct vfm_buf *b)
{
	const char *s = *p;
	char quote = 0;

	for (; *s && (quote || !is_blank(*s)); s++) {
		if (*s == '\\' && quote != '\'' && s[1] && (!quote || s[1] == '"' || s[1] == '\\'))
			vfm_buf_add(b, ++s, 1);
		else if (!quote && (*s == '\'' || *s == '"'))
			quote = *s;
		else if (quote && *s == quote)
			quote = 0;
		else
			vfm_buf_add(b, s, 1);
	}
	*p = s;
	return quote;
}

char **vfm_exec_words(const char *text, struct vfm_err *err)
{
	char **words = NULL;
	size_t n = 0, cap = 0;

	for (const char *p = text; *p;) {
		struct vfm_buf word = {0};
		char open;

		if (is_blank(*p)) {
			p++;
			continue;
		}
		vfm_buf_add(&word, "", 0);
		open = read_word(&p, &word);
		vfm_grow(&words, &cap, n + 2, sizeof(*words));
		words[n++] = word.data ? word.data : vfm_strdup("");
		words[n] = NULL;
		if (open) {
			vfm_fail(err, VFM_EUSAGE, "the command '%s' has an open %c", text, open);
			vfm_exec_words_free(words);
			return NULL;
		}
	}
	if (n == 0)
		vfm_fail(err, VFM_EUSAGE, "the command is empty");
	return words;
}

void vfm_exec_words_free(char **words)
{
	for (size_t i = 0; words && words[i]; i++)
		free(words[i]);
	free(words);
}
