#include "base/wait_status.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

void vfm_wait_status_text(int wait_status, char *text, size_t size)
{
	const char *sig = WIFSIGNALED(wait_status) ? sigabbrev_np(WTERMSIG(wait_status)) : NULL;

	if (sig)
		snprintf(text, size, "SIG%s", sig);
	else
		snprintf(text, size, "%s %d", WIFSIGNALED(wait_status) ? "signal" : "status",
			WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status));
}
