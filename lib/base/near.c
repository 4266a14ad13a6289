/* near.c - suggests the known word with the least edit distance. */
#include "base/near.h"

#include <stddef.h>
#include <string.h>

enum { MAX_WORD = 64 };

static int min_int(int a, int b)
{
	return a < b ? a : b;
}

/* Optimal string alignment distance. */
static int edit_distance(const char *a, const char *b)
{
	int la = (int)strlen(a), lb = (int)strlen(b), d[3][MAX_WORD + 1];

	for (int j = 0; j <= lb; j++)
		d[0][j] = j;
	for (int i = 1; i <= la; i++) {
		int *now = d[i % 3], *up = d[(i + 2) % 3], *up2 = d[(i + 1) % 3];

		now[0] = i;
		for (int j = 1; j <= lb; j++) {
			now[j] = min_int(min_int(up[j], now[j - 1]) + 1, up[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				now[j] = min_int(now[j], up2[j - 2] + 1);
		}
	}
	return d[la % 3][lb];
}

const char *vfm_near(const char *word, const char *const *list)
{
	size_t len = strlen(word);
	const char *best = NULL, *longer = NULL;
	int best_d = len < 3 ? 1 : len < 6 ? 2 : 3; /* exclusive limit */

	if (len > MAX_WORD)
		return NULL;
	for (; *list; list++) {
		int d = strlen(*list) > MAX_WORD ? best_d : edit_distance(word, *list);

		if (len >= 2 && strncmp(word, *list, len) == 0)
			longer = *list;
		if (d < best_d) {
			best_d = d;
			best = *list;
		}
	}
	return best ? best : longer;
}
