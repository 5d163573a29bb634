#!/bin/sh
# Runs a command in a virtual machine with another kernel and its own cgroups (version 2). The machine sees the
# files of its host; what it writes is lost at the end. ACCEL=kvm is ten times as fast, where available.
#
#     apt-get install qemu-system-x86; apt-get download linux-image-6.1.0-56-amd64 busybox-static
#     for deb in *.deb; do dpkg -x $deb vm; done
#     tests/tools/virtual_machine.sh vm .venv/bin/pytest -p no:cacheprovider tests/tools/test_limits.py -k kernel
#
# The kernel needs 9p, which kernels for clouds lack.
set -eu
kernel=$1; shift
made=$(mktemp -d); trap 'rm -rf "$made"' EXIT
mkdir "$made/root"
cp "$kernel/bin/busybox" "$made/root/"
names="virtio virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci netfs fscache 9pnet 9p
    9pnet_virtio overlay"
for name in $names; do find "$kernel" -name "$name.ko" -exec cp {} "$made/root/" \;; done
printf 'cd "%s"; export HOME=/root; %s\n' "$PWD" "$*" > "$made/root/command"
cat > "$made/root/init" <<'init'
#!/busybox sh
b=/busybox
$b mkdir -p /proc /sys /dev /lower /rw /new
$b mount -t proc proc /proc; $b mount -t sysfs sys /sys; $b mount -t devtmpfs dev /dev
for again in 1 2 3 4; do for each in /*.ko; do $b insmod $each 2> /dev/null; done; done  # one needs another
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144 host /lower
$b mount -t tmpfs tmpfs /rw; $b mkdir /rw/upper /rw/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work root /new
for each in proc sys dev; do $b mount --move /$each /new/$each; done
for each in run tmp dev/shm; do $b mkdir -p /new/$each; $b mount -t tmpfs -o mode=1777 tmpfs /new/$each; done
$b mount -t cgroup2 none /new/sys/fs/cgroup
$b ifconfig lo up
$b cp /command /new/run/command
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin $b chroot /new /bin/bash /run/command
echo o > /new/proc/sysrq-trigger; $b sleep 60
init
chmod +x "$made/root/init"
(cd "$made/root" && find . | ./busybox cpio -o -H newc) > "$made/initramfs"
qemu-system-x86_64 -accel "${ACCEL:-tcg}" -cpu max -smp 2 -m 3G -display none -serial stdio -no-reboot \
    -kernel "$kernel"/boot/vmlinuz-* -initrd "$made/initramfs" \
    -append "console=ttyS0 quiet panic=-1 cgroup_no_v1=all" \
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap
