/* Pipes, sockets, queues of messages, terminals. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>

#include "waits.h"

void prepare_pipe(void) { check(pipe(fds), "pipe"); }

static int listener;

static NOINLINE void wait_pipe(int i)
{
	char byte;

	sys(SYS_read, fds[0], &byte, 1, 0);
}

static void end_write(int i) { check(write(fds[1], "x", 1), "write"); }

/* Write until there has been no more room for `quiet` times 20 ms. */
static void fill(int fd, int quiet)
{
	static char content[65536];

	fcntl(fd, F_SETFL, O_NONBLOCK);
	for (int i = 0; i < quiet; i++) {
		while (write(fd, content, sizeof(content)) > 0 || write(fd, content, 1) > 0)
			i = 0;
		pause_us(20000);
	}
	fcntl(fd, F_SETFL, 0);
}

static void prepare_full_pipe(void)
{
	prepare_pipe();
	fill(fds[1], 1);
}

static NOINLINE void wait_pipe_write(int i) { sys(SYS_write, fds[1], page, 4096, 0); }

static void end_read(int i)
{
	static char content[4096];

	check(read(fds[0], content, sizeof(content)), "read");
}

static void prepare_unix(void) { check(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), "socketpair"); }

static NOINLINE void wait_receive(int i)
{
	char byte;

	sys6(SYS_recvfrom, fds[0], (long)&byte, 1, 0, 0, 0);
}

static struct sockaddr_in here(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);

	if (listener)
		getsockname(listener, (struct sockaddr *)&address, &size);
	return address;
}

static void prepare_listener(int backlog)
{
	struct sockaddr_in address = here();

	int buffer_bytes = 65536; /* said, so that the kernel lets them not grow */

	listener = check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	check(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof(int)), "setsockopt");
	check(bind(listener, (struct sockaddr *)&address, sizeof(address)), "bind");
	check(listen(listener, backlog), "listen");
}

static void set_timeout(int fd, int which)
{
	struct timeval t = {each_ms / 1000, each_ms % 1000 * 1000};

	check(setsockopt(fd, SOL_SOCKET, which, &t, sizeof(t)), "setsockopt");
}

static void prepare_tcp(void)
{
	prepare_listener(4);
	struct sockaddr_in address = here();
	int buffer_bytes = 65536;

	fds[0] = check(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	check(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(int)), "setsockopt");
	check(connect(fds[0], (struct sockaddr *)&address, sizeof(address)), "connect");
	fds[1] = check(accept(listener, NULL, NULL), "accept");
}

static void prepare_udp(void)
{
	struct sockaddr_in address = here();
	socklen_t size = sizeof(address);

	for (int i = 0; i < 2; i++)
		fds[i] = check(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");
	check(bind(fds[0], (struct sockaddr *)&address, size), "bind");
	getsockname(fds[0], (struct sockaddr *)&address, &size);
	check(connect(fds[1], (struct sockaddr *)&address, size), "connect");
}

static void prepare_full_tcp(void)
{
	prepare_tcp();
	fill(fds[0], 25); /* what is under way makes room up to a probe, 200 ms, later */
	set_timeout(fds[0], SO_SNDTIMEO);
}

static NOINLINE void wait_send(int i) { sys6(SYS_sendto, fds[0], (long)page, 4096, 0, 0, 0); }

static void prepare_full_backlog(void)
{
	prepare_listener(0);
	struct sockaddr_in address = here();

	for (int i = 0; i < 4; i++) {
		int fd = check(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket");
		connect(fd, (struct sockaddr *)&address, sizeof(address));
	}
	pause_us(20000);
}

static NOINLINE void wait_connect(int i)
{
	struct sockaddr_in address = here();
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	set_timeout(fd, SO_SNDTIMEO);
	sys(SYS_connect, fd, &address, sizeof(address), 0);
	close(fd);
}

static void prepare_accept(void)
{
	prepare_listener(4);
	set_timeout(listener, SO_RCVTIMEO);
}

static void prepare_unix_accept(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	listener = check(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
	check(bind(listener, (struct sockaddr *)&address, sizeof(sa_family_t)), "bind");
	check(listen(listener, 4), "listen");
	set_timeout(listener, SO_RCVTIMEO);
}

static NOINLINE void wait_accept(int i) { sys(SYS_accept4, listener, NULL, NULL, 0); }

static void prepare_msgqueue(void)
{
	files[0] = check(msgget(IPC_PRIVATE, 0600), "msgget");
}

static NOINLINE void wait_msgqueue(int i)
{
	struct { long type; char byte; } message;

	sys6(SYS_msgrcv, files[0], (long)&message, 1, 0, 0, 0);
}

static void clean_msgqueue(void) { msgctl(files[0], IPC_RMID, NULL); }

static void end_msgqueue(int i)
{
	struct { long type; char byte; } message = {1, 'x'};

	check(msgsnd(files[0], &message, 1, 0), "msgsnd");
}

static void prepare_mqueue(void)
{
	char name[64];
	struct mq_attr attributes = {.mq_maxmsg = 1, .mq_msgsize = 16};

	snprintf(name, sizeof(name), "/waits-%d", getpid());
	files[0] = check(mq_open(name, O_CREAT | O_EXCL | O_RDWR, 0600, &attributes), "mq_open");
	mq_unlink(name);
}

static NOINLINE void wait_mqueue(int i)
{
	char message[16];

	sys6(SYS_mq_timedreceive, files[0], (long)message, sizeof(message), 0, 0, 0);
}

static void end_mqueue(int i) { check(mq_send(files[0], "x", 1, 0), "mq_send"); }

static void prepare_tty(void)
{
	struct termios settings;

	fds[1] = check(posix_openpt(O_RDWR | O_NOCTTY), "posix_openpt");
	check(grantpt(fds[1]) | unlockpt(fds[1]), "unlockpt");
	fds[0] = check(open(ptsname(fds[1]), O_RDWR | O_NOCTTY), "open of a tty");
	tcgetattr(fds[0], &settings);
	cfmakeraw(&settings);
	tcsetattr(fds[0], TCSANOW, &settings);
}

const struct kind channel_kinds[] = {
	{"pipe", prepare_pipe, wait_pipe, end_write},
	{"pipe-write", prepare_full_pipe, wait_pipe_write, end_read},
	{"unix", prepare_unix, wait_receive, end_write},
	{"tcp", prepare_tcp, wait_receive, end_write},
	{"udp", prepare_udp, wait_receive, end_write},
	{"tcp-send", prepare_full_tcp, wait_send},
	{"connect", prepare_full_backlog, wait_connect},
	{"accept", prepare_accept, wait_accept},
	{"unix-accept", prepare_unix_accept, wait_accept},
	{"msgqueue", prepare_msgqueue, wait_msgqueue, end_msgqueue, .clean = clean_msgqueue},
	{"mqueue", prepare_mqueue, wait_mqueue, end_mqueue},
	{"tty", prepare_tty, wait_pipe, end_write},
	{0},
};
