/* Device communicators (comm_dev.h) over staging, and over a transport that shares no code with them. */
#include "shm_transport.h"

static const struct vfm_transport *const transport = &shm_transport;

static void make_library(void)
{
	shmt_make();
}

#include "comm_dev_tests.h"

int main(void)
{
	return run_comm_dev_tests();
}
